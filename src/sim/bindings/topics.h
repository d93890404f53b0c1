/// One init function per file of this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace noria::simtorch {

void init_configuration(pybind11::module_& m);  ///< enable, profiles, faults
void init_measurements(pybind11::module_& m);   ///< clocks, statistics, races, timeline
void init_device(pybind11::module_& m);         ///< what torch.sim is made of

}  // namespace noria::simtorch
