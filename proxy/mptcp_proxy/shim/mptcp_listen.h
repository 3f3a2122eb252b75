/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the parts of the preload library share. EXPORTED are the functions of the C library that it stands before;
 * all else is hidden (-fvisibility=hidden), so that no name meets one of the program's.
 */

#ifndef MPTCP_LISTEN_H
#define MPTCP_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define EXPORTED __attribute__((visibility("default")))

#define PRELOAD "LD_PRELOAD"
#define PORTS "MPTCP_LISTEN_PORTS"
#define CONGESTION "MPTCP_CONGESTION"
#define PARENTS "MPTCP_PARENTS"
#define TURNS "MPTCP_TURNS"

/* The values of these variables, NULL where there is none. Written by the constructor (scope.c), before the program's
 * main(), and only read afterwards. */
extern char *listen_ports, *congestion, *parents, *turns;

/* The constructor: makes everything ready, once. Whatever is EXPORTED calls it, for it may be called by another
 * library's constructor before. */
void start(void);

/* Have the C library's bind(2), connect(2), read(2), write(2), close(2), accept(2) and epoll(7) ready, and have clients take
 * turns where the environment says so. Parts of start(). */
void resolve_bind(void);
void resolve_connect(void);
void resolve_read(void);
void resolve_write(void);
void resolve_close(void);
void resolve_turns(void);
void begin_turns(void);

/* Put the next library's function *name* into the pointer that *function* points to. */
void resolve(void *function, const char *name);

extern int (*real_bind)(int, const struct sockaddr *, socklen_t);

/* The port of an IPv4 or IPv6 address; 0 for all else. */
int port_of(const struct sockaddr *address, socklen_t length);

/* An option of SOL_SOCKET, -1 where there is none. */
int integer_option(int fd, int name);

bool is_tcp(int fd);
bool is_mptcp(int fd);

/* Give the unbound MPTCP socket *mptcp* the congestion control that was chosen, if one was. */
void choose_congestion(int mptcp);

/* Put an MPTCP socket in the place of the TCP socket *fd*: NULL. Or leave *fd* alone and return why, with errno set. */
const char *swap(int fd);

/* Events of clients that Squid is given in a turn of its event loop. */
#ifndef TURN
#define TURN 16
#endif

/* More than the descriptors that Debian's Squid may have; what is beyond is nobody's. */
#define DESCRIPTORS 65536

/* Of fair_turns.c: is *fd* a client's? Have his epoll say *events* of it, or have it there no more, for 0. */
bool is_clients(int fd);
void want_of_client(int fd, uint32_t events);
extern int (*real_epoll_ctl)(int, int, int, struct epoll_event *);

/* The descriptor *fd* is about to be closed: it is no client's any more. */
void forget_client(int fd);

/* Of joined_writes.c, which holds what clients are written: epoll_ctl(2) for a client's descriptor in his *epoll*. */
int want(int epoll, int what, int fd, struct epoll_event *event);

/* Send what is to be sent; returns how many *events*, *most* at most, Squid is given before the kernel is asked. */
int go_on(struct epoll_event *events, int most);

/* Of *count* events leave those that are the program's, and not this library's own. Returns how many are left. */
int without_waiting(struct epoll_event *events, int count);

/* Send what is held for *fd*, which is about to be closed; where the kernel does not take all the close will be a reset. */
void send_writes(int fd);

/* *fd* is nobody's, or another's: what is held is dropped. */
void forget_writes(int fd);

/* More was ready of a client than Squid was given in this turn of its event loop. */
bool turn_was_cut(void);

/* Bytes that are read of a list, and no more. */
#define LIST_SIZE 4096

/* Copy the list that *value* is, or that is in the file of this name. False where the file cannot be read, with errno set. */
bool read_list(const char *value, char *list, size_t size);

#endif
