/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Tells a client within milliseconds that the proxy has closed the connection, if the client still writes.
 *
 * TCP answers data for a closed socket with a reset. MPTCP drops it and keeps the closed connection for 60 seconds
 * (TCP_TIMEWAIT_LEN, regardless of net.mptcp.close_timeout: mptcp_close_timeout() of net/mptcp/protocol.h), while the
 * client fills its window and waits. So when the program closes a connection, this file shuts it down for writing,
 * which sends the same packets, and holds it by a second descriptor until its client also closes. If data comes
 * instead, it closes the descriptor without reading the data, so that the kernel resets the connection (MP_FASTCLOSE).
 * Before that, it waits until all unsent data is sent, as long as the client accepts it.
 *
 * At most KEPT connections are held, each for SECONDS, if the hard limit of descriptors is higher than the soft limit
 * (mptcp-proxy provides that). All other connections are closed as usual: most of them, because their client has
 * already closed them; those with unread data, which the kernel resets itself; and those that will be reset (SO_LINGER
 * with 0). A forked child only drops its copies.
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

#define KEPT 512
#define SECONDS 60
/* Most clients close a few milliseconds after the proxy. As long as fewer than FEW connections are held, the thread
 * pauses, because one check of several connections takes less time than a check of each. */
#define CHECK_PAUSE_NS 10000000
#define FEW (KEPT / 8)

static pid_t owner; /* the process that loaded the library, not its forked children */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept {
	int fd; /* 0: free */
	time_t until;
} kept[KEPT];
static int kept_count; /* number of used entries of kept[] */
static int watched = -1; /* epoll(7) of the held connections; the data are indices of kept[] */
static bool failed;	 /* the thread could not be started; do not try again */
static bool late_writes;

void start_late_writes(void)
{
	owner = getpid();
	late_writes = listen_ports != NULL && !is_left_out("late-writes");
}

/* Return whether *fd* is an MPTCP connection whose client may still write. */
static bool is_open(int fd)
{
	struct pollfd state = { .fd = fd, .events = POLLIN | POLLRDHUP };
	struct linger linger = { 0 };
	socklen_t length = sizeof linger;

	return is_mptcp(fd) && integer_option(fd, SO_ACCEPTCONN) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff == 0 &&
	       poll(&state, 1, 0) == 0;
}

/* Close a held connection, which also removes it from *watched*. Call with the lock. */
static void stop_keeping(struct kept *each)
{
	next_close(each->fd);
	each->fd = 0;
	kept_count--;
}

/* Return whether a connection that became readable must be closed: its client has closed, or sends data and all our
 * data is sent. Otherwise drop the received data. Call without the lock, because this may take long, and our close(2)
 * waits for the lock. */
static bool is_over(int fd)
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
static void check_kept(struct kept *each)
{
	int fd;

	pthread_mutex_lock(&lock);
	fd = each->fd;
	pthread_mutex_unlock(&lock);
	if (fd <= 0 || !is_over(fd))
		return;
	pthread_mutex_lock(&lock);
	stop_keeping(each);
	pthread_mutex_unlock(&lock);
}

static void *watch(void *unused)
{
	const struct timespec between = { .tv_nsec = CHECK_PAUSE_NS };
	time_t last = now();
	bool few;

	(void)unused;
	for (;;) {
		struct epoll_event events[KEPT];
		int count = epoll_wait(watched, events, KEPT, 1000);
		time_t time = now();

		for (int i = 0; i < count; i++)
			check_kept(&kept[events[i].data.u32]);
		pthread_mutex_lock(&lock);
		for (int i = 0; i < KEPT && time > last; i++)
			if (kept[i].fd > 0 && time >= kept[i].until)
				stop_keeping(&kept[i]);
		few = kept_count < FEW;
		pthread_mutex_unlock(&lock);
		last = time;
		if (few)
			nanosleep(&between, NULL);
	}
	return NULL;
}

/* Start the thread unless it runs; return whether it runs. All signals are blocked in the thread, so that the program
 * still gets them. Call with the lock. */
static bool is_watching(void)
{
	pthread_t thread;
	sigset_t all, before;

	if (watched >= 0 || failed)
		return !failed;
	watched = epoll_create1(EPOLL_CLOEXEC);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = watched < 0 || pthread_create(&thread, NULL, watch, NULL) != 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!failed)
		pthread_detach(thread);
	return !failed;
}

static void keep(int fd)
{
	struct epoll_event wanted = { .events = EPOLLIN | EPOLLRDHUP };
	int copy = -1, i = 0;

	pthread_mutex_lock(&lock);
	while (i < KEPT && kept[i].fd > 0)
		i++;
	if (i < KEPT && is_watching())
		copy = mptcp_copy(fd);
	if (copy > 0) {
		wanted.data.u32 = i;
		if (shutdown(copy, SHUT_WR) == 0 && epoll_ctl(watched, EPOLL_CTL_ADD, copy, &wanted) == 0) {
			kept[i] = (struct kept){ .fd = copy, .until = now() + SECONDS };
			kept_count++;
			count_up(LATE_WRITERS, 1);
		} else {
			close_alone(copy);
		}
	}
	pthread_mutex_unlock(&lock);
}

void before_close(int fd)
{
	if (late_writes && owner == getpid() && is_open(fd))
		keep(fd);
}
