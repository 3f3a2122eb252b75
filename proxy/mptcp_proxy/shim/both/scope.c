/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Decides which child processes get the preload libraries.
 *
 * Squid starts two kinds of children. Its workers are the same program and need the libraries. Helpers (authentication,
 * rewriting, pinger, a shell for mail ...) are other programs and must not get the libraries. So the constructor
 * removes our libraries from LD_PRELOAD and our variables from the environment. The exec functions restore them only if
 * the child is the program that this process itself runs. Between fork and exec, the functions in this file do not
 * allocate, lock, or resolve symbols.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scope.h"

/* keep_settings() sets these variables before the program's main(). After that, they are only read. */
static const char *const own_names[OWN_ENTRIES] = {
	PRELOAD, "MPTCP_LISTEN_PORTS", "MPTCP_CONGESTION", "MPTCP_PARENTS", "MPTCP_TURNS", "MPTCP_WITHOUT", "MPTCP_COUNTERS",
};
static char *own_entries[OWN_ENTRIES]; /* "NAME=..." at this process's start, or NULL */
static char own_program[PATH_MAX];
static struct stat own_program_stat;

/* Compare the path as well as the file: after a package upgrade, the path names a new file, but this process still runs
 * the old one. */
bool names_own_program(const char *file)
{
	struct stat found;

	if (own_program[0] == '\0' || file == NULL)
		return false;
	if (strcmp(file, own_program) == 0)
		return true;
	return stat(file, &found) == 0 && found.st_dev == own_program_stat.st_dev &&
	       found.st_ino == own_program_stat.st_ino;
}

/* Test only the first executable file of this name in PATH, because execvp(3) runs that one. */
bool finds_own_program(const char *file)
{
	const char *path = getenv("PATH");
	char candidate[PATH_MAX];

	if (file == NULL || strchr(file, '/') != NULL)
		return names_own_program(file);
	while (path != NULL && *path != '\0') {
		size_t directory_length = strcspn(path, ":"), name_length = strlen(file);

		if (directory_length > 0 && directory_length + 1 + name_length < sizeof candidate) {
			memcpy(candidate, path, directory_length);
			candidate[directory_length] = '/';
			memcpy(candidate + directory_length + 1, file, name_length + 1);
			if (access(candidate, X_OK) == 0)
				return names_own_program(candidate);
		}
		path += directory_length + (path[directory_length] == ':');
	}
	return false;
}

static bool is_entry(const char *entry, const char *name)
{
	size_t length = strlen(name);

	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

size_t count_entries(char *const environment[])
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

void add_own_entries(char *const environment[], char **copy)
{
	for (size_t i = 0; environment != NULL && environment[i] != NULL; i++)
		if (!is_own_entry(environment[i]))
			*copy++ = environment[i];
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		if (own_entries[i] != NULL)
			*copy++ = own_entries[i];
	*copy = NULL;
}

/* ld.so(8) ignores LD_PRELOAD if effective and real ids differ. When root starts Squid, its first process executes the
 * workers with Squid's user as the real id and root as the effective id. A worker then drops the capabilities that it
 * does not need; with "tproxy" it keeps CAP_NET_ADMIN (capabilities(7)). So if root is the effective user, this
 * function makes it also the real user, and the worker starts with the same capabilities as without this library.
 * Otherwise it sets the effective ids to the real ids. Neither grants new rights, because a process may always exchange
 * these ids. System calls are used, because the C library's functions may wait for other threads, which a forked child
 * lacks. */
#ifdef SYS_setresuid32 /* 32-bit ports, on which the plain numbers are the 16-bit calls */
#define SETRESUID SYS_setresuid32
#define SETRESGID SYS_setresgid32
#else
#define SETRESUID SYS_setresuid
#define SETRESGID SYS_setresgid
#endif

struct ids match_ids(void)
{
	struct ids before = { getuid(), geteuid(), getegid() };

	if (before.user == 0)
		syscall(SETRESUID, 0, -1, -1);
	else
		syscall(SETRESUID, -1, before.real_user, -1);
	syscall(SETRESGID, -1, getgid(), -1);
	return before;
}

/* Restore the ids after a failed exec. The group comes first, while the user may still change it. */
void restore_ids(struct ids before)
{
	int saved = errno;

	syscall(SETRESGID, -1, before.group, -1);
	syscall(SETRESUID, before.real_user, before.user, -1);
	errno = saved;
}

/* Return whether *entry* of LD_PRELOAD, which has *length* bytes, is the library that was loaded from *path*. For an
 * entry without a slash, ld.so(8) searches directories, so only the last part of the path is compared. */
static bool is_own_library(const char *entry, size_t length, const char *path)
{
	const char *base = strrchr(path, '/');

	base = base == NULL ? path : base + 1;
	if (memchr(entry, '/', length) == NULL)
		path = base;
	return strlen(path) == length && memcmp(entry, path, length) == 0;
}

void hide_from_children(const char *path)
{
	const char *value = getenv(PRELOAD);
	char *remaining = value == NULL ? NULL : calloc(1, strlen(value) + 1);

	if (remaining == NULL)
		return;
	while (*value != '\0') {
		size_t length = strcspn(value, ": ");

		if (length > 0 && !is_own_library(value, length, path)) {
			if (remaining[0] != '\0')
				strcat(remaining, ":");
			strncat(remaining, value, length);
		}
		value += length + (value[length] != '\0');
	}
	if (remaining[0] == '\0')
		unsetenv(PRELOAD);
	else
		setenv(PRELOAD, remaining, 1);
	free(remaining);
}

/* LD_PRELOAD (the first entry) stays in the environment until hide_from_children() removes our libraries from it. */
void keep_settings(void)
{
	static bool is_saved;
	ssize_t length;

	if (is_saved)
		return;
	is_saved = true;
	length = readlink("/proc/self/exe", own_program, sizeof own_program - 1);
	if (length < 0 || stat("/proc/self/exe", &own_program_stat) != 0)
		length = 0;
	own_program[length] = '\0';
	for (size_t i = 0; i < OWN_ENTRIES; i++) {
		const char *value = getenv(own_names[i]);

		if (value == NULL || asprintf(&own_entries[i], "%s=%s", own_names[i], value) < 0)
			own_entries[i] = NULL;
		if (i > 0)
			unsetenv(own_names[i]);
	}
}

char *own_value(const char *name)
{
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		if (strcmp(own_names[i], name) == 0 && own_entries[i] != NULL)
			return own_entries[i] + strlen(name) + 1;
	return NULL;
}

bool is_switched_off(const char *feature)
{
	const char *list = mptcp_setting("MPTCP_WITHOUT");

	while (list != NULL && *list != '\0') {
		size_t length = strcspn(list, ",");

		if (strlen(feature) == length && strncmp(list, feature, length) == 0)
			return true;
		list += length + (list[length] != '\0');
	}
	return false;
}
