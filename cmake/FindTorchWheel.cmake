# Finds the PyTorch of the chosen Python and makes the targets torch::torch (C++) and torch::python (bindings).
#
# Never find_package(Torch): on a CUDA wheel it demands a CUDA toolkit, which nothing here needs.
# Sets TorchWheel_VERSION, TorchWheel_ROOT.

execute_process(
  COMMAND ${Python3_EXECUTABLE} -c
          "import importlib.util as u, os, sys
spec = u.find_spec('torch')
if spec is None: sys.exit(3)
import torch
print(os.path.dirname(torch.__file__), torch.__version__.split('+')[0], int(torch._C._GLIBCXX_USE_CXX11_ABI) if hasattr(torch._C, '_GLIBCXX_USE_CXX11_ABI') else 1, sep=';', end='')"
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
list(GET torch_facts 1 TorchWheel_VERSION)
list(GET torch_facts 2 torch_cxx11_abi)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TorchWheel_MINOR "${TorchWheel_VERSION}")

set(NORIA_TORCH_MINORS 2.13 2.14)
if(NOT TorchWheel_MINOR IN_LIST NORIA_TORCH_MINORS)
  list(JOIN NORIA_TORCH_MINORS " and " supported)
  message(FATAL_ERROR "noria ${PROJECT_VERSION} was built and tested with torch ${supported}; this Python has "
                      "${TorchWheel_VERSION}. Install one of those, or a newer noria.")
endif()

add_library(torch::torch INTERFACE IMPORTED)
target_include_directories(torch::torch SYSTEM INTERFACE ${TorchWheel_ROOT}/include
                                                         ${TorchWheel_ROOT}/include/torch/csrc/api/include)
target_link_directories(torch::torch INTERFACE ${TorchWheel_ROOT}/lib)
target_link_libraries(torch::torch INTERFACE c10 torch_cpu torch)
# The wheels are release builds: without NDEBUG some of PyTorch's classes have more members in our code than in theirs.
target_compile_definitions(torch::torch INTERFACE NDEBUG)
target_compile_definitions(torch::torch INTERFACE NORIA_TORCH_VERSION="${TorchWheel_VERSION}"
                                                  NORIA_TORCH_MINOR="${TorchWheel_MINOR}")
if(NOT torch_cxx11_abi)
  target_compile_definitions(torch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
endif()

add_library(torch::python INTERFACE IMPORTED)
target_include_directories(torch::python SYSTEM INTERFACE ${Python3_INCLUDE_DIRS})
target_link_libraries(torch::python INTERFACE torch::torch torch_python)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TorchWheel_ROOT VERSION_VAR TorchWheel_VERSION)
