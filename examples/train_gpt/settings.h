/*
 * settings.h: what --config FILE and the environment say, as defaults of flags.
 */
#ifndef TRAIN_GPT_SETTINGS_H
#define TRAIN_GPT_SETTINGS_H

#include "args.h"

/**
 * Read the file and put its values into args. Flags are read after it, and so count before it.
 *
 * @param args  [in,out] args->settings keeps the configuration, which nvme_dirs points into
 *
 * Returns EXIT_OK, or EXIT_USAGE after one line on stderr; EXIT_FAILED when the file cannot be read.
 */
int settings_read(const char *path, struct args *args);

#endif
