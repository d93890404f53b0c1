#pragma once

namespace noria::simtorch {

/// Makes noria::DeviceBackend::get(torch.device("sim")) give a backend that speaks to the runtime: raw copies without
/// dispatch, exact pinned blocks, capabilities as configured. Called at every enable(), since those may change.
void register_sim_device_backend();

}  // namespace noria::simtorch
