/// The parts of the PyTorch backend. Each is registered once, by enable(); loading the library registers nothing.
#pragma once

#include <torch/library.h>

namespace noria::simtorch {

void register_guard();
void register_device_allocator();
void register_host_allocator();
void register_hooks();

void register_fallback();                          ///< every operator without a kernel of its own
void register_views(torch::Library& library);      ///< as_strided, view, ...
void register_storage(torch::Library& library);    ///< empty, resize_, set_, record_stream
void register_copies(torch::Library& library);     ///< _copy_from and what host code reads
void register_attention(torch::Library& library);  ///< fused attention at a fused kernel's memory
void register_recurrent(torch::Library& library);  ///< the fused cells of LSTM and GRU
void register_autocast();                          ///< the cast policies of torch.autocast("sim")

}  // namespace noria::simtorch
