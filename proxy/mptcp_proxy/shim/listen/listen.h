/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * mptcp_listen.so gives an unchanged server MPTCP listeners, or MPTCP towards the parents that it is told, and nothing else
 * MPTCP. hooks.c calls listeners.c, parents.c and late_writes.c, and the former two call swap.c, which puts one socket in
 * the place of another.
 */

#ifndef LISTEN_H
#define LISTEN_H

#include "../both/both.h"

/* MPTCP_LISTEN_PORTS, MPTCP_CONGESTION and MPTCP_PARENTS; NULL where there is none. Written by start(). */
extern char *listen_ports, *congestion, *parents;

extern int (*next_bind)(int, const struct sockaddr *, socklen_t);

/* Of listeners.c and parents.c: *fd* is about to be bound or connected. It becomes an MPTCP socket where it is to be one. */
void before_bind(int fd, const struct sockaddr *address, socklen_t length);
void before_connect(int fd, const struct sockaddr *address, socklen_t length);

/* Of late_writes.c: note which process this is; and *fd* is about to be closed. */
void start_late_writes(void);
void before_close(int fd);

/* Of swap.c: an option of SOL_SOCKET, -1 where there is none. */
int integer_option(int fd, int name);

bool is_tcp(int fd);
bool is_mptcp(int fd);

/* Give the unbound MPTCP socket *mptcp* the congestion control that was chosen, if one was. */
void choose_congestion(int mptcp);

/* Put an MPTCP socket in the place of the TCP socket *fd*: NULL. Or leave *fd* alone and return why, with errno set. */
const char *swap(int fd);

/* Bytes that are read of a list, and no more. */
#define LIST_SIZE 4096

/* Copy the list that *value* is, or that is in the file of this name. False where the file cannot be read, with errno set. */
bool read_list(const char *value, char *list, size_t size);

#endif
