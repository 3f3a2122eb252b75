/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * squid_turns.so changes how epoll(7), read(2) and write(2) work for an unchanged Squid. It does not concern MPTCP, and
 * is optional. hooks.c calls the other files. joined_writes.c calls may_write.c; both of these and zero_read.c use
 * fair_turns.c.
 */

#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "../both/both.h"

/* Number of clients' events that are requested from the kernel in a turn of Squid's event loop. For each, about four
 * more events come without asking the kernel (may_write.c), so a turn serves about this number of requests. */
#ifndef TURN
#define TURN 4
#endif

/* Number of places. A place has an epoll, which takes a descriptor, while a client with this place is connected. Squid
 * does not count these descriptors, and keeps 100 free (RESERVED_FD): with more places it would run out of descriptors
 * in accept, and never accept again. If all places are taken, several clients share a place and count as one. A random
 * number decides which clients share, so no client can choose. */
#define CLIENTS 64

/* Queues of descriptors. FRESH: they get events without asking the kernel; SERVED: those of them that had an event in
 * this turn; CHANGED: the kernel must be told their changes. */
enum queue { FRESH, SERVED, CHANGED, QUEUES };

struct joined;

extern struct descriptor {
	atomic_ushort place; /* place of the client; 0: not a client's descriptor; written under clients_lock */
	atomic_bool listens; /* a connection was accepted from it, so it is a listener */
	atomic_uint asked_in; /* the turn of its last read of no bytes (zero_read.c) */
	/* The rest is written under events_lock. */
	struct interest {
		uint32_t wanted, asked; /* events of epoll(7): set by the program, and set in the kernel */
		bool wants, there;	/* registered by the program; registered in the kernel */
		bool fresh;		/* the program waits for EPOLLOUT, which is not set in the kernel */
		bool served;		/* it has an event in this turn */
		bool rest;		/* the library itself waits for EPOLLOUT */
		uint8_t left;		/* number of events to give without asking the kernel, if it took all of the last write */
	} interest;
	bool queued[QUEUES]; /* in the queue; stays set after a close until the queue is processed */
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

/* has_turns: whether clients take turns, and *fd* may have a place. place_at: the place of *fd*'s client, or 0.
 * is_clients: whether *fd* belongs to a client. */
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

/* Record that accept(2) on *listener* returned *fd*, which is negative if it failed. */
void note_accept(int listener, int fd);

/* Set *client* to the 64 bits that identify the client. Return false if the address is not an IP address. */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client);

/* enter_place: *fd* belongs to this client. share_place: *copy* belongs to the client of *fd*. leave_place: *fd* is
 * about to be closed. */
void enter_place(int fd, uint64_t client);
void share_place(int fd, int copy);
void leave_place(int fd);

/* Open an epoll for the client of *fd*, if *outer* is the event loop's epoll. If that fails, *fd* no longer counts as a
 * client's. */
void open_place(int outer, int fd);

/* Call epoll_ctl(2) for *fd* in its client's epoll, or in the event loop's if it has no client. */
int tell_kernel(int fd, int what, uint32_t events);

/* Begin a turn, in which the event loop's epoll has *count* events. */
void begin_turn(int count);

/* Split *count* events: keep those that do not belong to a client's epoll, and store the places of the other ones in
 * *ready*, their number in *found*. Return how many events are left. */
int part(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *found);

/* Add to *count* events the events of the *found* places in *ready*. Return the new count, at most *max*. */
int add_clients(struct epoll_event *events, int count, int max, const uint16_t *ready, int found);

/* Repeat events of listeners, so that they accept several connections. *others*: how many of *count* events do not
 * belong to clients. */
int add_accepts(struct epoll_event *events, int others, int count, int max);

/* -------------------------------------------------------------------------------------------------- may_write.c */

/* Callers of the functions below hold this lock, unless "Not held" is stated. */
extern pthread_mutex_t events_lock;

/* Not held: replacement of epoll_ctl(2) for *fd* in the event loop's epoll. */
int want(int what, int fd, const struct epoll_event *event);

static inline bool waits_to_write(int fd)
{
	return descriptors[fd].interest.wants && (descriptors[fd].interest.wanted & EPOLLOUT) != 0;
}

/* Record that the kernel took the last write to *fd*. *all*: whether it took all bytes. */
void took(int fd, bool all);

/* Set whether the library itself waits until the kernel takes the *rest* of the held data of *fd*. */
void wait_for_rest(int fd, bool rest);

/* may_serve: whether the program may get an event of *fd* before the kernel is asked. serve: give it the event that it
 * may write. */
bool may_serve(int fd);
void serve(int fd, struct epoll_event *event);

/* Add to *count* events those for which the kernel need not be asked. If there are no events, tell the kernel the
 * changes; the caller then asks it with *timeout*, which is set to 0 if events are left for the next turn. Return the
 * new count, at most *max*. */
int add_fresh(struct epoll_event *events, int count, int max, int *timeout);

/* Forget all that is known about *fd*, which is closed or reused. */
void forget_interest(int fd);

/* ---------------------------------------------------------------------------------------------- joined_writes.c */

/* Like write(2), but a result of 0 means that the caller must write these bytes to the kernel. */
ssize_t join(int fd, const char *bytes, size_t size);

/* Send held data that is due. Store *events* for connections on which the program may write more; return their number,
 * at most *max*. */
int continue_joined(struct epoll_event *events, int max);

/* Not held: remove from *count* events those for which only the library waits. Return how many are left. */
int without_rests(struct epoll_event *events, int count);

/* Not held: send the held data of *fd*, which is about to be closed. If the kernel does not take all of it, and *keep*
 * is set, a copy of *fd* sends the rest later, and this function returns true. Without such a copy, closing *fd* resets
 * the connection, if data is left. */
bool send_held(int fd, bool keep);

/* Not held: return the next copy to close, because its rest was sent or cannot be sent; -1 if there is none. */
int next_ended(void);

/* Drop the held data of *fd*, which is closed or reused. */
void forget_joined(int fd);

/* -------------------------------------------------------------------------------------------------- zero_read.c */

/* Return whether a read of *size* bytes from *fd* must fail with EAGAIN instead of reaching the kernel. If so, this
 * function has paused once in this turn. */
bool answers_read(int fd, size_t size);

#endif
