/*
 * haul.h: CPU and NVMe offload for training large models.
 *
 * A one-page tour.
 *
 * haul keeps parameters, gradients and Adam state in host memory (and on NVMe) and brings each unit
 * of the model to the device just before it is used.
 *
 *     struct haul_device_host_opts dopts;       1. a device: emulated here
 *     haul_device_host_opts_init(&dopts);
 *     haul_device_host_open(&dopts, &dev);
 *
 *     struct haul_engine_opts opts;             2. an engine on it
 *     haul_engine_opts_init(&opts);
 *     opts.device = dev;
 *     haul_engine_open(&opts, &engine);
 *
 *     haul_engine_add_unit(engine, &desc, &u);  3. the model: units of named tensors
 *     haul_engine_build(engine);                   plan, check the budgets, reserve
 *     haul_engine_fill(engine, init, NULL);        give the parameters values
 *
 *     acquire, compute, release, ...            4. train: see haul/engine.h
 *     haul_engine_step(engine, &step, &report);
 *
 *     haul_engine_close(engine);                5. and give everything back
 *     haul_device_close(dev);
 *
 * Conventions, true everywhere:
 * - int results: 0 or negative (haul/error.h). haul_last_error() says what failed, on what, what to do.
 * - Outputs come last and are written only on success.
 * - Options structs begin with struct_size and have an _init function; later versions only append.
 * - Units are in the names: _bytes, _ns, _elems; counts begin with n.
 * - open/close, take/give, acquire/release come in pairs; close accepts NULL.
 * - Handles are not locked: one thread at a time per handle unless the function says otherwise.
 *
 * Each header stands alone: a program that wants only the optimizers includes haul/optim.h.
 */
#ifndef HAUL_HAUL_H
#define HAUL_HAUL_H

#include "haul/error.h"
#include "haul/size.h"
#include "haul/pool.h"
#include "haul/pager.h"
#include "haul/optim.h"
#include "haul/device.h"
#include "haul/device_cuda.h"
#include "haul/comm.h"
#include "haul/plan.h"
#include "haul/engine.h"
#include "haul/checkpoint.h"
#include "haul/safetensors.h"
#include "haul/config.h"

#endif
