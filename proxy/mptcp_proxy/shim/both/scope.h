/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which processes the libraries are in: what both/hooks.c calls of scope.c.
 */

#ifndef SCOPE_H
#define SCOPE_H

#include "both.h"

#define PRELOAD "LD_PRELOAD"
#define OWN_ENTRIES 7

struct ids {
	uid_t real_user, user;
	gid_t group;
};

/* Keep the settings and the program's name, once, and take the former out of the environment. */
void keep_settings(void);

/* The value of the own variable *name*, NULL where there is none. */
char *own_value(const char *name);

/* Take the library of this *path* out of LD_PRELOAD, and leave what others put there. */
void hide_from_children(const char *path);

/* Does *file* name the program that this process runs? The second one looks for a bare name in PATH, as execvp(3) does. */
bool names_own_program(const char *file);
bool finds_own_program(const char *file);

size_t count_entries(char *const environment[]);

/* Copy *environment* with our own entries added; *copy* has room for count_entries() + OWN_ENTRIES + 1. */
void add_own_entries(char *const environment[], char **copy);

/* Make real and effective ids the same before an exec, and what they were after one that failed. */
struct ids match_ids(void);
void restore_ids(struct ids before);

#endif
