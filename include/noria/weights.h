/// The weights of a torch::nn module without any, and from safetensors files.
#pragma once

#include <noria/checkpoint.h>
#include <noria/module_handle.h>

namespace noria {

/// Gives up the memory of the module's parameters; its buffers stay. A parameter keeps its place, shape and dtype, and
/// reading it raises until a checkpoint fills it: load_weights(), or an Offload from a checkpoint. torch::nn modules
/// allocate their weights in the constructor, so empty a model larger than host memory part by part as it is built.
/// Throws std::invalid_argument when a parameter is offloaded.
void empty_weights(torch::nn::Module const& module);

/// Reads every parameter, and each buffer that the checkpoint has, into the module, where it is. Gives emptied
/// parameters and those on meta memory on the cpu. Throws IntegrityError when a parameter is missing or differs in
/// shape or dtype, before anything is read; StorageError and IntegrityError when the files cannot be read or have
/// changed.
void load_weights(torch::nn::Module const& module, Checkpoint const& checkpoint);

template <ModuleHandle Handle>
void empty_weights(Handle const& module) {
  empty_weights(module_of(module));
}

template <ModuleHandle Handle>
void load_weights(Handle const& module, Checkpoint const& checkpoint) {
  load_weights(module_of(module), checkpoint);
}

}  // namespace noria
