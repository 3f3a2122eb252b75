/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the programs of this folder share as processes: how they fail, how many descriptors they may have, where they
 * leave their counters, and the time. Each program is one other file.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define NANOSECONDS 1000000000LL

static inline void fail(const char *what)
{
	perror(what);
	exit(1);
}

static inline int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * NANOSECONDS + time.tv_nsec;
}

/* End with the parent, which may be killed; allow as many descriptors as the hard limit. Return a new epoll(7). */
static inline int begin_process(void)
{
	struct rlimit limit;
	int events;

	prctl(PR_SET_PDEATHSIG, SIGKILL);

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("getrlimit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("setrlimit");
	events = epoll_create1(EPOLL_CLOEXEC);
	if (events < 0)
		fail("epoll_create1");
	return events;
}

static inline void say_ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* Map the first bytes of a file, which another program reads meanwhile. */
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
