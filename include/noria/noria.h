/// All of noria for a C++ program that uses LibTorch, the simulator excepted (noria/sim.h).
#pragma once

#include <noria/bytes.h>
#include <noria/checkpoint.h>
#include <noria/device_backend.h>
#include <noria/error.h>
#include <noria/offload.h>
#include <noria/status.h>
#include <noria/trace.h>
#include <noria/version.h>
#include <noria/weights.h>
