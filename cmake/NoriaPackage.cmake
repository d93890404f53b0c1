# `cmake --install`: headers, libraries, and a CMake package whose find_package(noria) gives noria::noria, noria::sim
# and, without PyTorch, noria::core.

include(CMakePackageConfigHelpers)

set(noria_package ${CMAKE_INSTALL_LIBDIR}/cmake/noria)

function(noria_install export rpath)
  set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "${rpath}")
  install(TARGETS ${ARGN} EXPORT ${export} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
  install(EXPORT ${export} NAMESPACE noria:: DESTINATION ${noria_package} COMPONENT cpp)
endfunction()

noria_install(noria-core-targets "$ORIGIN" noria_core noria_simrt)
set(noria_package_files ${PROJECT_BINARY_DIR}/noriaConfig.cmake ${PROJECT_BINARY_DIR}/noriaConfigVersion.cmake)
if(NORIA_WITH_TORCH)
  noria_install(noria-torch-targets "$ORIGIN;${TorchWheel_ROOT}/lib" noria noria_sim)
  list(APPEND noria_package_files ${PROJECT_SOURCE_DIR}/cmake/FindTorchWheel.cmake)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/noriaConfig.cmake.in ${PROJECT_BINARY_DIR}/noriaConfig.cmake
                              INSTALL_DESTINATION ${noria_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/noriaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${noria_package_files} DESTINATION ${noria_package} COMPONENT cpp)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/noria DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
