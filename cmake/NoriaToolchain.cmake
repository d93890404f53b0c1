# Warnings for our own code, sanitizers, compiler cache.

find_program(NORIA_CCACHE ccache)
if(NORIA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need the sloppiness; without it every build of one is a miss. With the base folder and without
  # the working directory in the hash, a second checkout of the same sources compiles nothing again.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${NORIA_CCACHE})
endif()

add_library(noria_flags INTERFACE)
target_compile_options(noria_flags INTERFACE -Wall -Wextra -Wconversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache sees through a GCC precompiled header only with this.
  target_compile_options(noria_flags INTERFACE -fpch-preprocess)
endif()
if(NORIA_SANITIZE)
  add_compile_options(-fsanitize=${NORIA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${NORIA_SANITIZE})
endif()
if(NORIA_BUILD_FUZZ)
  # Our libraries report which of their branches an input took; only the targets link libFuzzer itself.
  add_compile_options(-fsanitize=fuzzer-no-link)
  # std::stable_sort of libstdc++ 12 calls a deprecated function of its own, which clang reports where it is used.
  add_compile_options(-Wno-deprecated-declarations)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(NORIA_DEBUG_ASSERTIONS=1)
endif()
