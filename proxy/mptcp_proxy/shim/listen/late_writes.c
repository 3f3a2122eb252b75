/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Resets a connection within milliseconds if the client still writes after the program has closed the connection.
 *
 * TCP answers data for a closed socket with a reset. MPTCP drops the data and keeps the closed connection for 60
 * seconds (TCP_TIMEWAIT_LEN, regardless of net.mptcp.close_timeout: mptcp_close_timeout() of net/mptcp/protocol.h),
 * while the client fills its window and waits. So when the program closes a connection, the library shuts it down for
 * writing, which sends the same packets as a close, and holds it with a second descriptor until the client also closes.
 * If the client sends data instead, the library closes the descriptor without reading the data, so that the kernel
 * resets the connection (MP_FASTCLOSE). But first it waits until all unsent data is sent, as long as the client accepts
 * data.
 *
 * The library holds at most MAX_HELD_CONNECTIONS connections, each for HOLD_SECONDS, if the hard limit of descriptors
 * is higher than the soft limit (mptcp-proxy sets the limits so). All other connections are closed as usual. Most of
 * these are connections that the client has already closed. The kernel resets the others at once, because they have
 * unread data, or because the program has set SO_LINGER with 0. A forked child does not hold connections.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "listen.h"

#define MAX_HELD_CONNECTIONS 512
#define HOLD_SECONDS 60
/* Most clients close a few milliseconds after the proxy. While fewer than FEW_CONNECTIONS connections are held, the
 * thread pauses between checks, because a check of several connections takes less time than a check of each. */
#define CHECK_PAUSE_NS 10000000
#define FEW_CONNECTIONS (MAX_HELD_CONNECTIONS / 8)

static pid_t library_owner; /* the process that loaded the library, not its forked children */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held {
	int fd; /* 0: free */
	time_t deadline;
} held[MAX_HELD_CONNECTIONS];
static int held_count; /* number of used entries of held[] */
static int held_epoll = -1; /* epoll(7) of the held connections; the data are indices of held[] */
static bool start_failed;    /* the thread could not be started, and will not be started again */
static bool late_writes;

void start_late_writes(void)
{
	library_owner = getpid();
	late_writes = listen_ports != NULL && !is_switched_off("late-writes");
}

/* Return whether *fd* is an MPTCP connection whose client may still write. */
static bool client_may_write(int fd)
{
	struct pollfd state = { .fd = fd, .events = POLLIN | POLLRDHUP };
	struct linger linger = { 0 };
	socklen_t length = sizeof linger;

	return is_mptcp(fd) && integer_option(fd, SO_ACCEPTCONN) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff == 0 &&
	       poll(&state, 1, 0) == 0;
}

/* Close a held connection, which also removes it from *held_epoll*. Call with the lock. */
static void close_held(struct held *each)
{
	next_close(each->fd);
	each->fd = 0;
	held_count--;
}

/* Return whether a connection that became readable must be closed, because its client has closed it, or because its
 * client sends data and all our data is sent. Otherwise drop the received data. Call without the lock, because this may
 * take long, and the hook of close(2) waits for the lock. */
static bool must_be_closed(int fd)
{
	char dropped[65536];
	int waiting = 0;
	ssize_t size = recv(fd, dropped, 1, MSG_PEEK | MSG_DONTWAIT);

	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (size <= 0 || ioctl(fd, SIOCOUTQ, &waiting) != 0 || waiting <= 0)
		return true;
	while (recv(fd, dropped, sizeof dropped, MSG_DONTWAIT) == (ssize_t)sizeof dropped)
		;
	return false;
}

/* Check one held connection. The descriptor stays valid without the lock, because only this thread closes it. */
static void check_held(struct held *each)
{
	int fd;

	pthread_mutex_lock(&lock);
	fd = each->fd;
	pthread_mutex_unlock(&lock);
	if (fd <= 0 || !must_be_closed(fd))
		return;
	pthread_mutex_lock(&lock);
	close_held(each);
	pthread_mutex_unlock(&lock);
}

static void *watch_held(void *unused)
{
	const struct timespec pause = { .tv_nsec = CHECK_PAUSE_NS };
	time_t last = now();
	bool few_are_held;

	(void)unused;
	for (;;) {
		struct epoll_event events[MAX_HELD_CONNECTIONS];
		int count = epoll_wait(held_epoll, events, MAX_HELD_CONNECTIONS, 1000);
		time_t time = now();

		for (int i = 0; i < count; i++)
			check_held(&held[events[i].data.u32]);
		pthread_mutex_lock(&lock);
		for (int i = 0; i < MAX_HELD_CONNECTIONS && time > last; i++)
			if (held[i].fd > 0 && time >= held[i].deadline)
				close_held(&held[i]);
		few_are_held = held_count < FEW_CONNECTIONS;
		pthread_mutex_unlock(&lock);
		last = time;
		if (few_are_held)
			nanosleep(&pause, NULL);
	}
	return NULL;
}

/* Start the thread unless it runs. Return whether it runs. The thread blocks all signals, so that the program's threads
 * get them. Call with the lock. */
static bool start_watching(void)
{
	pthread_t thread;
	sigset_t all, before;

	if (held_epoll >= 0 || start_failed)
		return !start_failed;
	held_epoll = epoll_create1(EPOLL_CLOEXEC);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	start_failed = held_epoll < 0 || pthread_create(&thread, NULL, watch_held, NULL) != 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!start_failed)
		pthread_detach(thread);
	return !start_failed;
}

static void hold(int fd)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
	int copy = -1, i = 0;

	pthread_mutex_lock(&lock);
	while (i < MAX_HELD_CONNECTIONS && held[i].fd > 0)
		i++;
	if (i < MAX_HELD_CONNECTIONS && start_watching())
		copy = mptcp_copy(fd);
	if (copy > 0) {
		event.data.u32 = i;
		if (shutdown(copy, SHUT_WR) == 0 && epoll_ctl(held_epoll, EPOLL_CTL_ADD, copy, &event) == 0) {
			held[i] = (struct held){ .fd = copy, .deadline = now() + HOLD_SECONDS };
			held_count++;
			count_up(LATE_WRITERS, 1);
		} else {
			close_without_hooks(copy);
		}
	}
	pthread_mutex_unlock(&lock);
}

void before_close(int fd)
{
	if (late_writes && library_owner == getpid() && client_may_write(fd))
		hold(fd);
}
