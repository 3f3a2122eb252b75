/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the parts of the preload library share. EXPORTED are the functions of the C library that it stands before;
 * all else is hidden (-fvisibility=hidden), so that no name meets one of the program's.
 */

#ifndef MPTCP_LISTEN_H
#define MPTCP_LISTEN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

#define PRELOAD "LD_PRELOAD"
#define PORTS "MPTCP_LISTEN_PORTS"
#define CONGESTION "MPTCP_CONGESTION"
#define PARENTS "MPTCP_PARENTS"
#define TURNS "MPTCP_TURNS"
#define WITHOUT "MPTCP_WITHOUT"

/* The values of these variables, NULL where there is none. Written by the constructor (scope.c), before the program's
 * main(), and only read afterwards. */
extern char *listen_ports, *congestion, *parents, *turns;

/* What can be left out of the library, by the words in MPTCP_WITHOUT; as listen_ports. */
enum feature { ZERO_READ, LATE_WRITES, MAY_WRITE, JOINED_WRITES, FEATURES };
extern bool without[FEATURES];

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

/* Events of clients that the kernel is asked for in a turn of Squid's event loop. To each come some four that it is not asked
 * for (may_write.c), so that this is as many requests. */
#ifndef TURN
#define TURN 4
#endif

/* Each place is a descriptor, of an epoll, while one of its clients is there. Squid does not count these, and keeps 100
 * free (RESERVED_FD): with more of them it would be out of descriptors while it accepts, and then never accepts again.
 * Where all places are taken clients share them, and are one here. Nobody can choose with whom: a random number decides. */
#define CLIENTS 64

/* More than the descriptors that Debian's Squid may have, and those of the library; what is beyond is nobody's. */
#define DESCRIPTORS 65536

/* Of fair_turns.c: do clients take turns, and is *fd* one that there may be a place for? Is it a client's, and in which
 * place, 0 for none? And epoll_ctl(2) for *fd* in the event loop's epoll, or in its client's. */
bool has_turns(int fd);
bool is_clients(int fd);
uint16_t place_at(int fd);
int tell_kernel(int fd, int what, uint32_t events);

/* A *copy* of the client's descriptor *fd* is the same client's. */
void share_place(int fd, int copy);

/* The descriptor *fd* is about to be closed: it is no client's any more. */
void forget_client(int fd);

/* Held in what follows of may_write.c and joined_writes.c, but for what says otherwise. */
extern pthread_mutex_t events_lock;

/* Of may_write.c, not held: epoll_ctl(2) for *fd* in the event loop; and how many *events*, *most* at most, the program is
 * given before the kernel is asked for others, and within which *timeout*. */
int want(int what, int fd, const struct epoll_event *event);
int go_on(struct epoll_event *events, int most, int *timeout);

/* Not held: is *fd* registered with the event loop? */
bool is_wanted(int fd);

/* The program waits until it may write to *fd*; where that is fresh the kernel is not asked. What was written last was
 * taken, *all* of it or not. */
bool waits_to_write(int fd);
bool is_fresh(int fd);
void took(int fd, bool all);

/* The library itself waits until *fd* takes the *rest* of what is held, or does so no more. */
void wait_for_rest(int fd, bool rest);

/* May the program have an event of *fd* before the kernel is asked? Give it one: it may write. */
bool may_serve(int fd);
void serve(int fd, struct epoll_event *event);

/* Not held: *fd* is closed, or another's. */
void forget_interest(int fd);

/* Of joined_writes.c, which holds what is written to clients: is something held of *fd*? What is held is dropped. */
bool is_held(int fd);
void forget_joined(int fd);

/* Send what is to be sent; returns how many *events*, *most* at most, are for those who go on. */
int go_on_with_joined(struct epoll_event *events, int most);

/* Not held: of *count* events leave those that are the program's, and not the library's own. Returns how many are left. */
int without_rests(struct epoll_event *events, int count);

/* Not held: send what is held of *fd*, which is about to be closed. Where the kernel does not take all, and the rest may be
 * kept, it is sent later, and true returned; otherwise that resets the connection. */
bool send_held(int fd, bool keep);

/* Not held: close what the program has closed, and whose rest is sent. */
void close_ended(void);

/* Of late_writes.c: seconds since some moment; and another descriptor of *fd*, beyond those that the program counts, -1 if
 * there is none. */
time_t now(void);
int copy_of(int fd);

/* Close a descriptor of the library's own, without waiting for its client. */
void close_at_once(int fd);

/* More was ready of a client than Squid was given in this turn of its event loop. */
bool turn_was_cut(void);

/* Bytes that are read of a list, and no more. */
#define LIST_SIZE 4096

/* Copy the list that *value* is, or that is in the file of this name. False where the file cannot be read, with errno set. */
bool read_list(const char *value, char *list, size_t size);

#endif
