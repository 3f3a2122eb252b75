/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which processes the library is in.
 *
 * Squid starts two kinds of children. Its workers are the same program, and must have the library; helpers
 * (authentication, rewriting, pinger, a shell for mail ...) are other programs, and must not. So the constructor
 * takes LD_PRELOAD's entry for this library and its own variables out of the environment at once, which makes
 * every way of starting a child clean by default, and the exec functions put them back for one target only: the
 * program this process runs itself. Between fork and exec nothing here allocates, locks or resolves symbols.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mptcp_listen.h"

extern char **environ;

char *listen_ports, *congestion, *parents, *turns;
bool without[FEATURES];

/* As listen_ports: written by the constructor, and only read afterwards. */
static int (*real_execve)(const char *, char *const[], char *const[]);
static int (*real_execvpe)(const char *, char *const[], char *const[]);
static const char *const own_names[] = { PRELOAD, PORTS, CONGESTION, PARENTS, TURNS, WITHOUT };
#define OWN_ENTRIES (sizeof own_names / sizeof *own_names)
static char *own_entries[OWN_ENTRIES]; /* "NAME=..." as this process was given it, or NULL */
static char own_program[PATH_MAX];
static struct stat own_program_stat;

/* Does *file*, as given to an exec function, name the program that this process runs? The path is compared as well
 * as the inode, since a package upgrade puts a new file at the old path while the old one still runs. */
static bool names_own_program(const char *file)
{
	struct stat found;

	if (own_program[0] == '\0' || file == NULL)
		return false;
	if (strcmp(file, own_program) == 0)
		return true;
	return stat(file, &found) == 0 && found.st_dev == own_program_stat.st_dev &&
	       found.st_ino == own_program_stat.st_ino;
}

/* The same for a bare name, which is to be found in PATH (execvp(3)). The first executable hit is what would run. */
static bool finds_own_program(const char *file)
{
	const char *path = getenv("PATH");
	char candidate[PATH_MAX];

	if (file == NULL || strchr(file, '/') != NULL)
		return names_own_program(file);
	while (path != NULL && *path != '\0') {
		size_t directory = strcspn(path, ":"), name = strlen(file);

		if (directory > 0 && directory + 1 + name < sizeof candidate) {
			memcpy(candidate, path, directory);
			candidate[directory] = '/';
			memcpy(candidate + directory + 1, file, name + 1);
			if (access(candidate, X_OK) == 0)
				return names_own_program(candidate);
		}
		path += directory + (path[directory] == ':');
	}
	return false;
}

static bool is_entry(const char *entry, const char *name)
{
	size_t length = strlen(name);

	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static size_t count(char *const environment[])
{
	size_t length = 0;

	while (environment != NULL && environment[length] != NULL)
		length++;
	return length;
}

static bool is_own_entry(const char *entry)
{
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		if (is_entry(entry, own_names[i]))
			return true;
	return false;
}

/* Copy *environment* with this library's entries added; *copy* has room for count() + OWN_ENTRIES + 1. */
static void add_own_entries(char *const environment[], char **copy)
{
	for (size_t i = 0; environment != NULL && environment[i] != NULL; i++)
		if (!is_own_entry(environment[i]))
			*copy++ = environment[i];
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		if (own_entries[i] != NULL)
			*copy++ = own_entries[i];
	*copy = NULL;
}

/* ld.so(8) ignores LD_PRELOAD where effective and real ids differ. Squid's first process, started by root, executes
 * its workers with its own user as the real id and root as the effective one, and a worker then gives up what it does
 * not need: with "tproxy" it keeps CAP_NET_ADMIN (capabilities(7)). So where root is the effective user it becomes the
 * real one, too, and the worker begins with all that it has without this library. In every other case the effective
 * ids become those that are real. Neither grants anything: who has an id as the real or the effective one may make
 * it the other at any time.
 * By system call, because the C library's functions may wait for other threads, which a forked child has not. */
#ifdef SYS_setresuid32 /* 32-bit ports, where the plain numbers are those of the 16-bit calls */
#define SETRESUID SYS_setresuid32
#define SETRESGID SYS_setresgid32
#else
#define SETRESUID SYS_setresuid
#define SETRESGID SYS_setresgid
#endif

struct ids {
	uid_t real_user, user;
	gid_t group;
};

/* Returns the ids as they were. */
static struct ids match_ids(void)
{
	struct ids before = { getuid(), geteuid(), getegid() };

	if (before.user == 0)
		syscall(SETRESUID, 0, -1, -1);
	else
		syscall(SETRESUID, -1, before.real_user, -1);
	syscall(SETRESGID, -1, getgid(), -1);
	return before;
}

/* After an exec that failed. The group comes first, while the user may still change it. */
static void restore_ids(struct ids before)
{
	int saved = errno;

	syscall(SETRESGID, -1, before.group, -1);
	syscall(SETRESUID, before.real_user, before.user, -1);
	errno = saved;
}

EXPORTED int execve(const char *path, char *const argv[], char *const envp[])
{
	start();
	if (names_own_program(path)) {
		char *copy[count(envp) + OWN_ENTRIES + 1]; /* on the stack: malloc may be locked between fork and exec */
		struct ids ids;

		add_own_entries(envp, copy);
		ids = match_ids();
		real_execve(path, argv, copy);
		restore_ids(ids);
		return -1;
	}
	return real_execve(path, argv, envp);
}

EXPORTED int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

EXPORTED int execvpe(const char *file, char *const argv[], char *const envp[])
{
	start();
	if (finds_own_program(file)) {
		char *copy[count(envp) + OWN_ENTRIES + 1];
		struct ids ids;

		add_own_entries(envp, copy);
		ids = match_ids();
		real_execvpe(file, argv, copy);
		restore_ids(ids);
		return -1;
	}
	return real_execvpe(file, argv, envp);
}

EXPORTED int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

/* ------------------------------------------------------------------------------------------------- constructor */

/* Is the *length* bytes long *entry* of LD_PRELOAD this library, which was loaded from *path*? ld.so(8): an entry
 * without a slash is searched for, so only its last part can be compared. */
static bool is_own_library(const char *entry, size_t length, const char *path)
{
	const char *base = strrchr(path, '/');

	base = base == NULL ? path : base + 1;
	if (memchr(entry, '/', length) == NULL)
		path = base;
	return strlen(path) == length && memcmp(entry, path, length) == 0;
}

/* Take this library out of LD_PRELOAD and leave what others put there. */
static void hide_from_children(const char *value, const char *path)
{
	char *rest = calloc(1, strlen(value) + 1);

	if (rest == NULL)
		return;
	while (*value != '\0') {
		size_t length = strcspn(value, ": ");

		if (length > 0 && !is_own_library(value, length, path)) {
			if (rest[0] != '\0')
				strcat(rest, ":");
			strncat(rest, value, length);
		}
		value += length + (value[length] != '\0');
	}
	if (rest[0] == '\0')
		unsetenv(PRELOAD);
	else
		setenv(PRELOAD, rest, 1);
	free(rest);
}

/* Keep "NAME=value" of each own name on the heap, for good. */
static void keep_own_entries(void)
{
	for (size_t i = 0; i < OWN_ENTRIES; i++) {
		const char *value = getenv(own_names[i]);

		if (value == NULL || asprintf(&own_entries[i], "%s=%s", own_names[i], value) < 0)
			own_entries[i] = NULL;
	}
}

/* The value of the own name number *i*, NULL where there is none. */
static char *own_value(size_t i)
{
	return own_entries[i] == NULL ? NULL : own_entries[i] + strlen(own_names[i]) + 1;
}

/* Leave out the features that are in a *list* like "zero-read,may-write". */
static void leave_out(const char *list)
{
	static const char *const names[FEATURES] = { "zero-read", "late-writes", "may-write", "joined-writes" };

	while (list != NULL && *list != '\0') {
		size_t length = strcspn(list, ",");

		for (int i = 0; i < FEATURES; i++)
			without[i] |= strlen(names[i]) == length && strncmp(list, names[i], length) == 0;
		list += length + (list[length] != '\0');
	}
}

/* POSIX lets a void * from dlsym hold a function; ISO C has no cast for it. */
void resolve(void *function, const char *name)
{
	void *symbol = dlsym(RTLD_NEXT, name);

	memcpy(function, &symbol, sizeof symbol);
}

/* Runs before main(); or earlier, when another library's constructor calls one of the functions above. */
__attribute__((constructor)) void start(void)
{
	Dl_info library;
	ssize_t length;

	if (real_execve != NULL)
		return;
	resolve_bind();
	resolve_connect();
	resolve_read();
	resolve_write();
	resolve_close();
	resolve_turns();
	resolve(&real_execve, "execve");
	resolve(&real_execvpe, "execvpe");

	length = readlink("/proc/self/exe", own_program, sizeof own_program - 1);
	if (length < 0 || stat("/proc/self/exe", &own_program_stat) != 0)
		length = 0;
	own_program[length] = '\0';

	keep_own_entries();
	listen_ports = own_value(1);
	congestion = own_value(2);
	parents = own_value(3);
	turns = own_value(4);
	leave_out(own_value(5));
	begin_turns();
	/* Any object of this library tells where it was loaded from. */
	if (own_value(0) != NULL && dladdr(own_program, &library) != 0)
		hide_from_children(own_value(0), library.dli_fname);
	for (size_t i = 1; i < OWN_ENTRIES; i++)
		unsetenv(own_names[i]);
}
