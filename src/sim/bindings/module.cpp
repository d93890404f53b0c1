#include <pybind11/pybind11.h>

#include "sim/bindings/topics.h"

PYBIND11_MODULE(_sim, m) {
  m.doc() = "The simulated accelerator; the public names are in noria.sim";
  noria::simtorch::init_configuration(m);
  noria::simtorch::init_measurements(m);
  noria::simtorch::init_device(m);
}
