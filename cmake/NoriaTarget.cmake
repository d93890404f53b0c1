# How our libraries, extensions and tests are declared.

include(GNUInstallDirs)
if(NORIA_BUILD_TESTS)
  include(GoogleTest)
endif()

# A shared library of ours. Development builds put it beside the Python facade, so that the source tree imports.
# C++ programs know it as noria::<exported>.
function(noria_library name exported)
  add_library(${name} SHARED)
  add_library(noria::${exported} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${exported})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE noria_flags)
  noria_place(${name})
endfunction()

# Where a binary goes, in development and installed; the loader finds our libraries beside it and torch's next door.
function(noria_place name)
  if(NORIA_WITH_TORCH AND NORIA_BUILD_PYTHON)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${NORIA_PYTHON_OUTPUT})
  endif()
  if(NORIA_PYTHON_INSTALL)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
    install(TARGETS ${name} LIBRARY DESTINATION noria COMPONENT python RUNTIME DESTINATION noria COMPONENT python)
  endif()
endfunction()

# A Python extension module: pybind11 as bundled with torch, nothing exported but its entry point.
function(noria_extension name)
  add_library(${name} MODULE)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name} CXX_VISIBILITY_PRESET hidden)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sysconfig;print(sysconfig.get_config_var('EXT_SUFFIX'),end='')"
                  OUTPUT_VARIABLE suffix)
  set_target_properties(${name} PROPERTIES SUFFIX "${suffix}")
  target_link_libraries(${name} PRIVATE noria_flags torch::python)
  noria_place(${name})
endfunction()

# noria_test(name SOURCES a.cpp ... LINK lib ...): one GoogleTest binary, one ctest entry per case. A binary that uses
# PyTorch is one entry: loading PyTorch for every case would take longer than the cases.
function(noria_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE noria_flags ${arg_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  if("noria" IN_LIST arg_LINK)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS "${arg_LABELS}")
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
  endif()
endfunction()

# noria_bench(name SOURCES ... LINK ...): one Google Benchmark binary for one question.
function(noria_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE noria_flags ${arg_LINK} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()

# noria_fuzz(name SOURCES ... LINK ...): one libFuzzer binary (preset `fuzz`, clang). Its seed inputs, if any, are in
# tests/corpus/<name>. In other builds it is only a compile command, so that the linter sees the file.
function(noria_fuzz name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  if(NORIA_BUILD_FUZZ)
    add_executable(${name} ${arg_SOURCES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    add_dependencies(fuzzers ${name})
  else()
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${arg_SOURCES})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE noria_flags ${arg_LINK})
endfunction()
