/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * squid_turns.so changes how epoll(7), read(2) and write(2) serve an unchanged Squid. It contains nothing of MPTCP, and
 * is optional. hooks.c calls the parts. joined_writes.c calls may_write.c, both call fair_turns.c, and so does
 * zero_read.c.
 */

#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "../both/both.h"

/* Events of clients that the kernel is asked for in a turn of Squid's event loop. For each, about four come without
 * asking the kernel (may_write.c), so this is as many requests. */
#ifndef TURN
#define TURN 4
#endif

/* Each place takes a descriptor, of an epoll, while one of its clients is there. Squid does not count these, and keeps
 * 100 free (RESERVED_FD): with more it would run out of descriptors in accept, and never accept again. If all places
 * are taken, clients share them and count as one. A random number decides with whom, so no client can choose. */
#define CLIENTS 64

/* Of descriptors: those with events without asking the kernel, those of them that had one in this turn, and those with
 * changes to tell the kernel. */
enum queue { FRESH, SERVED, CHANGED, QUEUES };

struct joined;

extern struct descriptor {
	atomic_ushort place; /* the client's place, 0: no client's; written under clients_lock */
	atomic_bool listens; /* something was accepted from it */
	atomic_uint asked_in; /* the turn of its last read of no bytes (zero_read.c) */
	/* The rest is written under events_lock. */
	struct interest {
		uint32_t wanted, asked; /* of epoll(7): by the program, and of the kernel */
		bool wants, there;	/* registered: by the program, and with the kernel */
		bool fresh;		/* the program waits for EPOLLOUT, and the kernel does not know */
		bool served;		/* it has an event in this turn */
		bool rest;		/* the library itself waits for EPOLLOUT */
		uint8_t left;		/* events left without asking the kernel, if it took all of the last write */
	} interest;
	bool queued[QUEUES]; /* remains, even if closed, until the queue is processed */
	int next[QUEUES];
	struct joined *joined; /* the held data, or NULL */
	bool broken; /* held data could not be sent: the kernel must report that */
} descriptors[DESCRIPTORS];

/* Features that are left out. Written by start(). */
extern bool without_may_write, without_joined_writes, without_zero_read;

/* ------------------------------------------------------------------------------------------------- fair_turns.c */

extern int (*next_epoll_ctl)(int, int, int, struct epoll_event *);
extern int (*next_epoll_wait)(int, struct epoll_event *, int, int);

extern atomic_bool fair;
extern atomic_int event_loop; /* the first epoll that got a client's descriptor, or -1 */
extern atomic_bool cut; /* a client had more ready than Squid was given in this turn */

void start_turns(void);
void end_turns(void);

/* Do clients take turns, and may *fd* have a place? The place of its client, or 0. Is it a client's? */
static inline bool has_turns(int fd)
{
	return fair && fd >= 0 && fd < DESCRIPTORS;
}
static inline uint16_t place_at(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&descriptors[fd].place, memory_order_relaxed) : 0;
}
static inline bool is_clients(int fd)
{
	return fair && place_at(fd) != 0;
}

/* *listener* gave *fd*, or none if it is negative. */
void note_accept(int listener, int fd);

/* The 64 bits that identify a client; false if the address is none of IP. */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client);

/* *fd* belongs to this client. *copy* belongs to the client of *fd*. *fd* is about to be closed. */
void enter_place(int fd, uint64_t client);
void share_place(int fd, int copy);
void leave_place(int fd);

/* Open an epoll for the client of *fd*, if *outer* is the event loop's. If that fails *fd* is no longer a client's. */
void open_place(int outer, int fd);

/* epoll_ctl(2) for *fd* in the event loop's epoll, or in its client's. */
int tell_kernel(int fd, int what, uint32_t events);

/* A turn begins with *count* events of the event loop, without those of its clients. */
void begin_turn(int count);

/* Keep those of *count* events that are of no client's epoll; store the *ready* places. Returns how many are left. */
int part(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *found);

/* Add to *count* events those of the *found* clients that are *ready*. Returns the new count, at most *most*. */
int add_clients(struct epoll_event *events, int count, int most, const uint16_t *ready, int found);

/* Add events to make listeners accept several connections. *others*: how many of *count* events are of no client. */
int add_accepts(struct epoll_event *events, int others, int count, int most);

/* -------------------------------------------------------------------------------------------------- may_write.c */

/* Callers of the functions below hold it, unless stated otherwise. */
extern pthread_mutex_t events_lock;

/* Not held: epoll_ctl(2) for *fd* in the event loop. */
int want(int what, int fd, const struct epoll_event *event);

static inline bool waits_to_write(int fd)
{
	return descriptors[fd].interest.wants && (descriptors[fd].interest.wanted & EPOLLOUT) != 0;
}

/* The kernel took the last write to *fd*, *all* of it or not. */
void took(int fd, bool all);

/* The library itself waits until *fd* takes the *rest* of the held data, or no longer does. */
void wait_for_rest(int fd, bool rest);

/* May the program have an event of *fd* before the kernel is asked? Give it one: it may write. */
bool may_serve(int fd);
void serve(int fd, struct epoll_event *event);

/* Add to *count* events those that need no question to the kernel. If there are none, tell the kernel the changes; ask
 * it within *timeout* then. Returns the new count, at most *most*. */
int add_fresh(struct epoll_event *events, int count, int most, int *timeout);

/* *fd* is closed, or reused. */
void forget_interest(int fd);

/* ---------------------------------------------------------------------------------------------- joined_writes.c */

/* As write(2), but 0 means: give the kernel these bytes. */
ssize_t join(int fd, const char *bytes, size_t size);

/* Send what is due. Returns how many *events*, at most *most*, are for writers that go on. */
int go_on_with_joined(struct epoll_event *events, int most);

/* Not held: keep those of *count* events that are the program's, not the library's own. Returns how many are left. */
int without_rests(struct epoll_event *events, int count);

/* Not held: send the held data of *fd*, which is about to be closed. If the kernel does not take all, and the rest may
 * be kept, a copy of *fd* sends it later and this returns true. Otherwise closing *fd* resets the connection. */
bool send_held(int fd, bool keep);

/* Not held: the next copy to close, whose rest is sent or never will be; or -1. */
int next_ended(void);

/* *fd* is closed, or reused: drop its held data. */
void forget_joined(int fd);

/* -------------------------------------------------------------------------------------------------- zero_read.c */

/* Must a read of *size* bytes from *fd* be answered here? Then the answer is EAGAIN, after a pause in each turn. */
bool answers_read(int fd, size_t size);

#endif
