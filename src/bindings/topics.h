/// One init function per file of this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace noria {

void init_core(pybind11::module_& m);
void init_device(pybind11::module_& m);
void init_engine(pybind11::module_& m);
void init_hooks(pybind11::module_& m);

}  // namespace noria
