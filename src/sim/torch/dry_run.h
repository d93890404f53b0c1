/// Which bytes of a dry run have values.
///
/// Note [Known bytes]
/// A dry run plans: it allocates, orders and prices every operator and computes none, since most tensors have no memory
/// behind them. But schedulers and attention masks look at small tensors, so those stay real: a tensor of at most
/// sim::kSmallBlock bytes whose values were computed from known values, or copied from the host, is known, and an
/// operator all of whose operands are known is computed. What needs the value of anything else raises.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

namespace noria::simtorch::dry {

/// True while the simulator is configured with `dry`.
bool active() noexcept;
/// Called by enable(); forgets everything.
void configure(bool dry);

/// True when every byte from the first to the last element has a value. Always true outside a dry run.
bool known(at::Tensor const& tensor);

/// The tensor's elements have been written from known values. Bytes between elements keep what they were, so a tensor
/// with gaps becomes known only if it was. Tensors without real memory behind them never become known.
void learn(at::Tensor const& tensor);

/// The values of these bytes are not known any more.
void forget(void const* data, std::size_t bytes);

/// `bytes` at `to` are now known where those at `from` are.
void copy_knowledge(void const* to, void const* from, std::size_t bytes);

/// Raises: `operation` needs values that a dry run did not compute.
[[noreturn]] void refuse(std::string_view operation);

}  // namespace noria::simtorch::dry
