# Finds PyTorch and makes the targets torch::torch (C++) and torch::python (bindings).
#
# Where NORIA_TORCH_ROOT says, a folder with include/ and lib/ as in a wheel or a LibTorch archive; else in the Python
# that was found. Never find_package(Torch): on a CUDA build it demands a CUDA toolkit, which nothing here needs.
# Sets TorchWheel_VERSION, TorchWheel_MINOR, TorchWheel_ROOT.

set(torch_cxx11_abi 1)
if(NORIA_TORCH_ROOT)
  set(TorchWheel_ROOT ${NORIA_TORCH_ROOT})
else()
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "import importlib.util as u, os, sys
spec = u.find_spec('torch')
if spec is None: sys.exit(3)
import torch
print(os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI) if hasattr(torch._C, '_GLIBCXX_USE_CXX11_ABI') else 1, sep=';', end='')"
    OUTPUT_VARIABLE torch_facts
    ERROR_VARIABLE torch_error
    RESULT_VARIABLE torch_status)
  if(torch_status EQUAL 3)
    message(FATAL_ERROR "noria needs PyTorch in the Python that builds it, and ${Python3_EXECUTABLE} has none. "
                        "Install it first (pip install torch), then: pip install --no-build-isolation .")
  elseif(NOT torch_status EQUAL 0)
    message(FATAL_ERROR "import torch failed in ${Python3_EXECUTABLE}: ${torch_error}")
  endif()
  list(GET torch_facts 0 TorchWheel_ROOT)
  list(GET torch_facts 1 torch_cxx11_abi)
endif()

set(torch_version_header ${TorchWheel_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${torch_version_header})
  message(FATAL_ERROR "There is no PyTorch that noria can use in ${TorchWheel_ROOT}: ${torch_version_header} is missing. "
                      "Set NORIA_TORCH_ROOT to the folder that holds its include and lib.")
endif()
file(STRINGS ${torch_version_header} torch_version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX MATCHALL "[0-9]+" torch_version_parts "${torch_version_lines}")
list(JOIN torch_version_parts "." TorchWheel_VERSION)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TorchWheel_MINOR "${TorchWheel_VERSION}")

if(NOT NORIA_TORCH_MINORS)
  set(NORIA_TORCH_MINORS 2.13 2.14)
endif()
if(NOT TorchWheel_MINOR IN_LIST NORIA_TORCH_MINORS)
  list(JOIN NORIA_TORCH_MINORS " and " supported)
  message(FATAL_ERROR "this noria was built and tested with torch ${supported}, and ${TorchWheel_ROOT} has "
                      "${TorchWheel_VERSION}. Install one of those, or a newer noria.")
endif()

add_library(torch::torch INTERFACE IMPORTED)
target_include_directories(torch::torch SYSTEM INTERFACE ${TorchWheel_ROOT}/include
                                                         ${TorchWheel_ROOT}/include/torch/csrc/api/include)
# By their paths, so that programs find them when they run.
foreach(library IN ITEMS c10 torch_cpu torch)
  target_link_libraries(torch::torch INTERFACE
    ${TorchWheel_ROOT}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${library}${CMAKE_SHARED_LIBRARY_SUFFIX})
endforeach()
# The wheels are release builds: without NDEBUG some of PyTorch's classes have more members in our code than in theirs.
target_compile_definitions(torch::torch INTERFACE NDEBUG)
target_compile_definitions(torch::torch INTERFACE NORIA_TORCH_VERSION="${TorchWheel_VERSION}"
                                                  NORIA_TORCH_MINOR="${TorchWheel_MINOR}")
if(NOT torch_cxx11_abi)
  target_compile_definitions(torch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
endif()

if(Python3_FOUND)
  add_library(torch::python INTERFACE IMPORTED)
  target_include_directories(torch::python SYSTEM INTERFACE ${Python3_INCLUDE_DIRS})
  target_link_directories(torch::python INTERFACE ${TorchWheel_ROOT}/lib)
  target_link_libraries(torch::python INTERFACE torch::torch torch_python)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TorchWheel_ROOT VERSION_VAR TorchWheel_VERSION)
