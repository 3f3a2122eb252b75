/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The exec functions, and the functions that both libraries share.
 *
 * If both libraries are loaded, all callers use the mptcp_...() functions of the first library, so only the first
 * library has settings. In the second library, the program that this process runs is unknown, so its exec functions
 * only call the next library.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "both.h"
#include "scope.h"

/* Number of descriptors for connections that the program has closed: for late_writes.c, and for joined_writes.c. */
#define COPIES (512 + 256)

extern char **environ;

int (*next_close)(int);
static int (*next_execve)(const char *, char *const[], char *const[]);
static int (*next_execvpe)(const char *, char *const[], char *const[]);

static _Atomic uint64_t private_counters[COUNTERS];
_Atomic uint64_t *counters = private_counters;

static int first_copy, end_of_copies; /* range of the libraries' descriptors; the end is not included */

/* In POSIX, a void * from dlsym may be the address of a function, but ISO C has no cast for this. */
void resolve(void *function, const char *name)
{
	void *symbol = dlsym(RTLD_NEXT, name);

	memcpy(function, &symbol, sizeof symbol);
}

/* Map the file of the counters. Only root may open it, so this must be called before the process changes its user. */
static void map_counters(void)
{
	const char *name = mptcp_setting("MPTCP_COUNTERS");
	int file = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
	void *mapped = MAP_FAILED;
	struct stat found;

	if (file >= 0 && fstat(file, &found) == 0 && found.st_size >= (off_t)sizeof private_counters)
		mapped = mmap(NULL, sizeof private_counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped != MAP_FAILED)
		counters = mapped;
	if (file >= 0)
		close_without_hooks(file);
}

void start_both(void)
{
	resolve(&next_close, "close");
	resolve(&next_execve, "execve");
	resolve(&next_execvpe, "execvpe");
	/* Any object of this library identifies its file. */
	mptcp_hide(&next_close);
	map_counters();
}

char *mptcp_setting(const char *name)
{
	keep_settings();
	return own_value(name);
}

void mptcp_hide(const void *object)
{
	Dl_info library;

	keep_settings();
	if (dladdr(object, &library) != 0)
		hide_from_children(library.dli_fname);
}

/* Raise the limit of descriptors for the libraries. Squid has read the limit at its start, so it does not use these
 * descriptors. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;
	rlim_t max;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= DESCRIPTORS)
		return;
	max = limit.rlim_cur + COPIES < DESCRIPTORS ? limit.rlim_cur + COPIES : DESCRIPTORS;
	first_copy = limit.rlim_cur;
	limit.rlim_cur = limit.rlim_max < max ? limit.rlim_max : max;
	if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
		end_of_copies = limit.rlim_cur;
}

int mptcp_copy(int fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int copy = -1;

	pthread_once(&once, raise_descriptor_limit);
	if (first_copy < end_of_copies)
		copy = fcntl(fd, F_DUPFD_CLOEXEC, first_copy);
	if (copy >= end_of_copies) {
		close_without_hooks(copy);
		copy = -1;
	}
	return copy;
}

/* Execute *file* with our entries added to its environment. The copy of the environment is on the stack, because malloc
 * may be locked between fork and exec. */
static int execute(int (*next)(const char *, char *const[], char *const[]), const char *file, char *const argv[],
		   char *const envp[])
{
	char *copy[count_entries(envp) + OWN_ENTRIES + 1];
	struct ids ids;

	add_own_entries(envp, copy);
	ids = match_ids();
	next(file, argv, copy);
	restore_ids(ids);
	return -1;
}

EXPORTED int execve(const char *path, char *const argv[], char *const envp[])
{
	start();
	return names_own_program(path) ? execute(next_execve, path, argv, envp) : next_execve(path, argv, envp);
}

EXPORTED int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

EXPORTED int execvpe(const char *file, char *const argv[], char *const envp[])
{
	start();
	return finds_own_program(file) ? execute(next_execvpe, file, argv, envp) : next_execvpe(file, argv, envp);
}

EXPORTED int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}
