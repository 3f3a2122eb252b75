/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Helpers shared by the programs in this directory: errors, descriptor limit, shared counters and time. Each program
 * has one .c file.
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

/* Terminate when the parent dies, raise the descriptor limit to the hard limit, and return a new epoll descriptor. */
static inline int begin_process(void)
{
	struct rlimit limit;
	int epoll;

	prctl(PR_SET_PDEATHSIG, SIGKILL);

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("getrlimit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("setrlimit");
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		fail("epoll_create1");
	return epoll;
}

static inline void print_ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* Map the first *size* bytes of a file that another program reads concurrently. */
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
