/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * mptcp_listen.so gives an unchanged server MPTCP listeners, or MPTCP towards listed parents, and no other MPTCP.
 * hooks.c calls listeners.c, parents.c and late_writes.c. The first two call swap.c, which replaces one socket by
 * another.
 */

#ifndef LISTEN_H
#define LISTEN_H

#include "../both/both.h"

/* MPTCP_LISTEN_PORTS, MPTCP_CONGESTION and MPTCP_PARENTS, or NULL. Written by start(). */
extern char *listen_ports, *congestion, *parents;

extern int (*next_bind)(int, const struct sockaddr *, socklen_t);

/* listeners.c and parents.c: *fd* is about to be bound or connected. Make it an MPTCP socket if it has to be one. */
void before_bind(int fd, const struct sockaddr *address, socklen_t length);
void before_connect(int fd, const struct sockaddr *address, socklen_t length);

/* late_writes.c: note which process this is; *fd* is about to be closed. */
void start_late_writes(void);
void before_close(int fd);

/* swap.c: an option of SOL_SOCKET, or -1. */
int integer_option(int fd, int name);

bool is_tcp(int fd);
bool is_mptcp(int fd);

/* Set the chosen congestion control, if any, on the unbound socket *mptcp*. */
void choose_congestion(int mptcp);

/* Replace the TCP socket *fd* by an MPTCP socket and return NULL. Or leave *fd* alone and return why, with errno
 * set. */
const char *swap(int fd);

/* Most bytes that are read of a list. */
#define LIST_SIZE 4096

/* Copy the list *value*, or the list in the file *value*. False, with errno, if the file cannot be read. */
bool read_list(const char *value, char *list, size_t size);

#endif
