/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the programs of this folder share as processes: how they fail, how many descriptors they may have, and where
 * they leave their counters. Each is one file of C besides.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static inline void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* As many descriptors as the hard limit allows. */
static inline void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("getrlimit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("setrlimit");
}

/* The first so many bytes of the file, for whoever reads it meanwhile. */
static inline void *shared_file(const char *path, size_t size)
{
	int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *mapped;

	if (file < 0 || ftruncate(file, (off_t)size) < 0)
		fail(path);
	mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped == MAP_FAILED)
		fail(path);
	return mapped;
}

#endif
