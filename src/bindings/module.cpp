#include <pybind11/pybind11.h>

#include "bindings/topics.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "noria's engine; the public names are in the package noria";
  noria::init_core(m);
  noria::init_device(m);
  noria::init_engine(m);
  noria::init_hooks(m);
}
