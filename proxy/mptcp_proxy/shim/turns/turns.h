/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * squid_turns.so changes how an unchanged Squid is served by epoll(7), read(2) and write(2). It has nothing of MPTCP, and a
 * site may leave it out. hooks.c calls the parts; of these joined_writes.c calls may_write.c, both call fair_turns.c, and so
 * does zero_read.c.
 */

#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "../both/both.h"

/* Events of clients that the kernel is asked for in a turn of Squid's event loop. About four come to each without a question
 * to the kernel (may_write.c), so that this is as many requests. */
#ifndef TURN
#define TURN 4
#endif

/* Each place is a descriptor, of an epoll, while one of its clients is there. Squid does not count these, and keeps 100
 * free (RESERVED_FD): with more of them it would be out of descriptors while it accepts, and then never accept again.
 * Where all places are taken clients share them, and are one here. Nobody can choose with whom: a random number decides. */
#define CLIENTS 64

/* Of descriptors: those that have events without a question, of them those that had one in this turn, and those of which the
 * kernel is to be told something. */
enum queue { FRESH, SERVED, CHANGED, QUEUES };

struct joined;

/* All that is known of a descriptor. */
extern struct descriptor {
	atomic_ushort place; /* the client's place, 0: no client's; written under clients_lock */
	atomic_bool listens; /* something was accepted of it */
	atomic_uint asked_in; /* the turn in which no bytes were asked of it last (zero_read.c) */
	/* What follows is written under events_lock. */
	struct interest {
		uint32_t wanted, asked; /* of epoll(7): by the program, and of the kernel */
		bool wants, there;	/* whether it is registered: by the program, and with the kernel */
		bool fresh;		/* the program waits for EPOLLOUT, and the kernel does not know */
		bool served;		/* it has an event in this turn */
		bool rest;		/* the library itself waits for EPOLLOUT */
		uint8_t left;		/* events without a question since the last write, if that was taken whole */
	} interest;
	bool queued[QUEUES]; /* it stays there, though closed, until the queue is gone through */
	int next[QUEUES];
	struct joined *joined; /* what is held, or NULL */
	bool broken; /* what was held could not be sent: the kernel is to say so */
} descriptors[DESCRIPTORS];

/* What is left out. Written by start(). */
extern bool without_may_write, without_joined_writes, without_zero_read;

/* ------------------------------------------------------------------------------------------------- fair_turns.c */

extern int (*next_epoll_ctl)(int, int, int, struct epoll_event *);
extern int (*next_epoll_wait)(int, struct epoll_event *, int, int);

extern atomic_bool fair; /* clients take turns */
extern atomic_int event_loop; /* the epoll that the first of a client's descriptors was put into, or -1 */
extern atomic_bool cut; /* more was ready of a client than Squid was given in this turn */

void start_turns(void);
void end_turns(void);

/* Do clients take turns, and is *fd* one that there may be a place for? Its client's place, 0 for none. Is it a client's? */
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

/* *listener* gave *fd*, or none where that is below 0. */
void note_accept(int listener, int fd);

/* The 64 bits that a client is known by; false where the address is none of IP's. */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client);

/* *fd* is this client's. A *copy* of a client's descriptor *fd* is the same client's. And *fd* is about to be closed. */
void enter_place(int fd, uint64_t client);
void share_place(int fd, int copy);
void leave_place(int fd);

/* Have an epoll for the client whose descriptor *fd* is, if *outer* is the event loop's. Where there can be none *fd* is no
 * client's any more. */
void open_place(int outer, int fd);

/* epoll_ctl(2) for *fd* in the event loop's epoll, or in its client's. */
int tell_kernel(int fd, int what, uint32_t events);

/* A turn begins with *count* events of the event loop, and none of its clients. */
void begin_turn(int count);

/* Of *count* events leave those that are of no client's epoll, and note the *ready* places. Returns how many are left. */
int part(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *found);

/* Add to *count* events those of the *found* clients that are *ready*. Returns how many there are then, *most* at most. */
int add_clients(struct epoll_event *events, int count, int most, const uint16_t *ready, int found);

/* Add the events by which listeners accept more than one connection. *others*: how many of *count* events are of no client. */
int add_accepts(struct epoll_event *events, int others, int count, int most);

/* -------------------------------------------------------------------------------------------------- may_write.c */

/* Held in all that follows, but where something else is said. */
extern pthread_mutex_t events_lock;

/* Not held: epoll_ctl(2) for *fd* in the event loop. */
int want(int what, int fd, const struct epoll_event *event);

/* The program waits until it may write to *fd*. */
static inline bool waits_to_write(int fd)
{
	return descriptors[fd].interest.wants && (descriptors[fd].interest.wanted & EPOLLOUT) != 0;
}

/* What was written to *fd* last was taken, *all* of it or not. */
void took(int fd, bool all);

/* The library itself waits until *fd* takes the *rest* of what is held, or does so no more. */
void wait_for_rest(int fd, bool rest);

/* May the program have an event of *fd* before the kernel is asked? Give it one: it may write. */
bool may_serve(int fd);
void serve(int fd, struct epoll_event *event);

/* Add to *count* events those for which no question is needed. Where there is none the kernel is told what has changed,
 * and is to be asked within *timeout*. Returns how many events there are then, *most* at most. */
int add_fresh(struct epoll_event *events, int count, int most, int *timeout);

/* *fd* is closed, or another's. */
void forget_interest(int fd);

/* ---------------------------------------------------------------------------------------------- joined_writes.c */

/* As write(2), but that 0 says that the kernel is to be given these bytes. */
ssize_t join(int fd, const char *bytes, size_t size);

/* Send what is to be sent. Returns how many *events*, *most* at most, are for those who go on. */
int go_on_with_joined(struct epoll_event *events, int most);

/* Not held: of *count* events leave those that are the program's, and not the library's own. Returns how many are left. */
int without_rests(struct epoll_event *events, int count);

/* Not held: send what is held of *fd*, which is about to be closed. Where the kernel does not take all, and the rest may be
 * kept, it is sent later by a copy of *fd*, and true returned. Otherwise closing *fd* resets the connection. */
bool send_held(int fd, bool keep);

/* Not held: the next copy whose rest is sent, or never will be, and which is to be closed; -1 where there is none. */
int next_ended(void);

/* *fd* is closed, or another's: what is held of it is dropped. */
void forget_joined(int fd);

/* -------------------------------------------------------------------------------------------------- zero_read.c */

/* Is a read of *size* bytes from *fd* one that is answered here? Then the answer is EAGAIN, after a pause in each turn. */
bool answers_read(int fd, size_t size);

#endif
