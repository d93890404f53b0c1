// torch.autocast("sim"): the operators that CUDA runs in lower precision, in float32, or in the widest of their
// operands.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

using namespace at::autocast;  // NOLINT(google-build-using-namespace): the macros below name its members
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

// `m` is what PyTorch's macros call the library.
void register_policies(torch::Library& m) { m.fallback(torch::CppFunction::makeFallthrough()); }

void register_operators(torch::Library& m) {
#define NORIA_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(NORIA_LOWER_PRECISION)
#undef NORIA_LOWER_PRECISION
#define NORIA_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(NORIA_FLOAT32)
#undef NORIA_FLOAT32
#define NORIA_FLOAT32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(NORIA_FLOAT32_DTYPE)
#undef NORIA_FLOAT32_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define NORIA_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(NORIA_PROMOTE)
#undef NORIA_PROMOTE
}

}  // namespace

void register_autocast() {
  static auto& any =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  register_policies(any);
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  register_operators(aten);
}

}  // namespace noria::simtorch
