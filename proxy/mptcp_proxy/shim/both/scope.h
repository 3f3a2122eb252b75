/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The functions of scope.c, which decide which child processes get the preload libraries. both/hooks.c calls them.
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

/* At the first call, save the settings and the program's name, and remove the settings from the environment. */
void keep_settings(void);

/* The value of our variable *name*, or NULL. */
char *own_value(const char *name);

/* Remove the library at *path* from LD_PRELOAD; keep the other entries. */
void hide_from_children(const char *path);

/* Return whether *file* names the program that this process runs. finds_own_program() searches PATH for a name without
 * a slash, as execvp(3) does. */
bool names_own_program(const char *file);
bool finds_own_program(const char *file);

size_t count_entries(char *const environment[]);

/* Copy *environment* with our entries added. *copy* has room for count_entries() + OWN_ENTRIES + 1 pointers. */
void add_own_entries(char *const environment[], char **copy);

/* Make real and effective ids equal before an exec, and restore them if the exec failed. */
struct ids match_ids(void);
void restore_ids(struct ids before);

#endif
