/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * mptcp_listen.so makes the listeners of an unchanged server, or its connections to listed parents, use MPTCP. Other
 * sockets do not change. hooks.c calls listeners.c, parents.c and late_writes.c. The first two call swap.c, which
 * replaces a TCP socket with an MPTCP socket.
 */

#ifndef LISTEN_H
#define LISTEN_H

#include "../both/both.h"

/* The values of MPTCP_LISTEN_PORTS, MPTCP_CONGESTION and MPTCP_PARENTS, or NULL. start() sets them. */
extern char *listen_ports, *congestion, *parents;

extern int (*next_bind)(int, const struct sockaddr *, socklen_t);

/* listeners.c and parents.c: called before *fd* is bound or connected. Replace it with an MPTCP socket if necessary. */
void before_bind(int fd, const struct sockaddr *address, socklen_t length);
void before_connect(int fd, const struct sockaddr *address, socklen_t length);

/* late_writes.c: start_late_writes() initializes that file; before_close() is called before *fd* is closed. */
void start_late_writes(void);
void before_close(int fd);

/* swap.c: return the value of an option of SOL_SOCKET, or -1. */
int integer_option(int fd, int name);

bool is_tcp(int fd);
bool is_mptcp(int fd);

/* Set the congestion control MPTCP_CONGESTION, if any, on the unbound socket *mptcp*. */
void choose_congestion(int mptcp);

/* Replace the TCP socket *fd* with an MPTCP socket and return NULL. If this fails, *fd* is unchanged, and the reason is
 * returned, with errno set. */
const char *swap(int fd);

/* Maximum size of a list, with the final NUL. The rest of a longer list is ignored. */
#define LIST_SIZE 4096

/* Copy to *list* the list *value* or, if *value* begins with '/', the list in that file. Return false, with errno set,
 * if the file cannot be read. */
bool read_list(const char *value, char *list, size_t size);

#endif
