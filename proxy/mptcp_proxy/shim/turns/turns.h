/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * squid_turns.so changes how epoll(7), read(2) and write(2) work for an unchanged Squid. It does not need MPTCP, and is
 * optional. hooks.c calls the other files. joined_writes.c calls may_write.c; both of these and zero_read.c use
 * fair_turns.c.
 */

#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "../both/both.h"

/* Maximum number of clients' events that the library requests from the kernel in a turn of Squid's event loop. For each
 * of them, Squid gets about four more events without a request to the kernel (may_write.c), so a turn serves about this
 * number of requests. */
#ifndef EVENTS_PER_TURN
#define EVENTS_PER_TURN 4
#endif

/* Number of places for clients. While a client with a place is connected, the place has an epoll, which takes a
 * descriptor. Squid does not count these descriptors, and keeps 100 free (RESERVED_FD). With more places, Squid would
 * run out of descriptors in accept, and never accept again. If all places are taken, several clients share a place and
 * count as one. A random number decides which clients share, so no client can choose. */
#define CLIENTS 64

/* Queues of descriptors. PROMISED: the program gets EPOLLOUT for them without a request to the kernel. GIVEN: promised
 * descriptors that had an event in this turn. CHANGED: their registration in the kernel must be updated. */
enum queue { PROMISED, GIVEN, CHANGED, QUEUES };

struct joined;

extern struct descriptor {
	atomic_ushort place;	    /* place of the client; 0: not a client's descriptor; protected by clients_lock */
	atomic_bool is_listener;    /* a connection was accepted from it */
	atomic_uint last_zero_read; /* the turn of its last read of zero bytes (zero_read.c) */
	/* events_lock protects the following fields. */
	struct interest {
		uint32_t events, kernel_events; /* events of epoll(7): set by the program; set in the kernel */
		bool registered, in_kernel;	/* registered by the program; registered in the kernel */
		bool promised;			/* the program waits for EPOLLOUT, which is not set in the kernel */
		bool event_given;		/* the program got an event in this turn */
		bool library_waits;		/* the library itself waits for EPOLLOUT */
		uint8_t promises_left;		/* how often the program may get EPOLLOUT without a request to the kernel */
	} interest;
	bool queued[QUEUES]; /* in the queue; stays set after a close until the queue is processed */
	int next[QUEUES];
	struct joined *joined; /* the held data, or NULL */
	bool broken; /* held data could not be sent: the kernel must report the error to the program */
} descriptors[DESCRIPTORS];

/* Features that are switched off. start() sets them. */
extern bool without_may_write, without_joined_writes, without_zero_read;

/* ------------------------------------------------------------------------------------------------- fair_turns.c */

extern int (*next_epoll_ctl)(int, int, int, struct epoll_event *);
extern int (*next_epoll_wait)(int, struct epoll_event *, int, int);

extern atomic_bool fair; /* clients take turns in this process */
extern atomic_int event_loop; /* the first epoll that got a client's descriptor, or -1 */
extern atomic_bool turn_was_cut; /* a client has more ready events than Squid got in this turn */

void start_turns(void);
void end_turns(void);

/* has_turns: return whether clients take turns, and *fd* may have a place. place_at: return the place of *fd*'s client,
 * or 0. belongs_to_client: return whether *fd* belongs to a client. */
static inline bool has_turns(int fd)
{
	return fair && fd >= 0 && fd < DESCRIPTORS;
}
static inline uint16_t place_at(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&descriptors[fd].place, memory_order_relaxed) : 0;
}
static inline bool belongs_to_client(int fd)
{
	return fair && place_at(fd) != 0;
}

/* Record that accept(2) on *listener* returned *fd*, which is negative if accept failed. */
void note_accept(int listener, int fd);

/* Set *client* to the 64 bits that identify the client. Return false if the address is not an IP address. */
bool client_of(const struct sockaddr *address, socklen_t length, uint64_t *client);

/* Record that *fd* belongs to *client*; that *copy* belongs to the client of *fd*; that *fd* will be closed. */
void enter_place(int fd, uint64_t client);
void share_place(int fd, int copy);
void leave_place(int fd);

/* Open an epoll for the client of *fd*, if *outer* is the event loop's epoll. If this fails, *fd* no longer counts as a
 * client's descriptor. */
void open_place(int outer, int fd);

/* Call epoll_ctl(2) for *fd* with its client's epoll, or with the event loop's if it has no client. */
int kernel_epoll_ctl(int fd, int operation, uint32_t events);

/* Begin a turn, for which the event loop's epoll returned *count* events. */
void begin_turn(int count);

/* Remove the events of clients' epolls from *count* events. Store the places of these clients in *ready*, and their
 * number in *ready_count*. Return how many events remain. */
int split_events(struct epoll_event *events, int count, uint16_t ready[CLIENTS], int *ready_count);

/* Add to *count* events the events of the *ready_count* places in *ready*. Return the new count, at most *max*. */
int add_clients(struct epoll_event *events, int count, int max, const uint16_t *ready, int ready_count);

/* Repeat events of listeners, so that Squid accepts several connections. *others*: how many of *count* events do not
 * belong to clients. Return the new count, at most *max*. */
int add_accepts(struct epoll_event *events, int others, int count, int max);

/* -------------------------------------------------------------------------------------------------- may_write.c */

/* Callers must hold this lock when they call the functions below, unless the comment begins with "Without the lock". */
extern pthread_mutex_t events_lock;

/* Without the lock: replacement of epoll_ctl(2) for *fd* with the event loop's epoll. */
int change_registration(int operation, int fd, const struct epoll_event *event);

static inline bool waits_to_write(int fd)
{
	return descriptors[fd].interest.registered && (descriptors[fd].interest.events & EPOLLOUT) != 0;
}

/* Record the last write to *fd*. *all*: whether the kernel accepted all bytes. */
void record_write(int fd, bool all);

/* Set whether the library itself waits until the kernel accepts the rest of the held data of *fd*. */
void set_library_waits(int fd, bool waits);

/* Return whether the program may get an event of *fd* before the next request to the kernel. */
bool may_give_event(int fd);

/* Store in *event* that the program may write to *fd*. */
void give_write_event(int fd, struct epoll_event *event);

/* Add the promised events to *count* events. If there are no events, update the registrations in the kernel; the caller
 * then waits for the kernel's events with *timeout*, which is set to 0 if events are left for the next turn. Return the
 * new count, at most *max*. */
int add_promised(struct epoll_event *events, int count, int max, int *timeout);

/* Delete the registration of *fd*, which is closed or reused. */
void forget_interest(int fd);

/* ---------------------------------------------------------------------------------------------- joined_writes.c */

/* Hold these bytes, or send held data. The result is that of write(2), but 0 means that the caller must write these
 * bytes to the kernel. */
ssize_t join_write(int fd, const char *bytes, size_t size);

/* Send held data that is due. Store *events* for connections on which the program may write more; return their number,
 * at most *max*. */
int continue_joined(struct epoll_event *events, int max);

/* Without the lock: remove from *count* events those for which only the library waits. Return how many remain. */
int remove_rest_events(struct epoll_event *events, int count);

/* Without the lock: send the held data of *fd*, which will be closed. If the kernel does not accept all of it, and
 * *keep* is set, a copy of *fd* sends the rest later, and this function returns true. If data remains without such a
 * copy, the close of *fd* resets the connection. */
bool send_held(int fd, bool keep);

/* Without the lock: return a copy that must be closed, because its data was sent or cannot be sent; -1 if there is
 * none. */
int next_ended_copy(void);

/* Delete the held data of *fd*, which is closed or reused. */
void forget_joined(int fd);

/* -------------------------------------------------------------------------------------------------- zero_read.c */

/* Return whether a read of *size* bytes from *fd* must fail with EAGAIN without a call of the kernel. If so, pause,
 * unless there was a pause in this turn. */
bool must_fail_read(int fd, size_t size);

#endif
