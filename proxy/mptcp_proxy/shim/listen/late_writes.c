/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Tells a client that still writes after the proxy has closed, within milliseconds.
 *
 * TCP answers data for a closed socket with a reset. MPTCP drops it and keeps the closed connection for 60 seconds
 * (TCP_TIMEWAIT_LEN, regardless of net.mptcp.close_timeout: mptcp_close_timeout() of net/mptcp/protocol.h), while the
 * client fills its window and waits. So when the program closes a connection, shut it down for writing, which sends the
 * same, and hold it by a second descriptor until its client closes too. If data comes instead, close the descriptor
 * with that unread: then the kernel resets the connection (MP_FASTCLOSE). Wait first until all unsent data is sent, as
 * long as the client takes it.
 *
 * At most KEPT connections are held, each for SECONDS, if the hard limit of descriptors leaves room beyond the soft one
 * (mptcp-proxy provides that). All others are closed as usual: those that their client has already closed, as most are,
 * those with unread data, which the kernel resets itself, and those that will be reset (SO_LINGER with 0). A forked
 * child only drops its copies.
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
/* Most clients close within milliseconds of the proxy. While there is room for more, one check for all takes less time
 * than one for each. */
#define BETWEEN_LOOKS_NS 10000000
#define FEW (KEPT / 8)

static pid_t owner; /* the process that loaded the library, not its forked children */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept {
	int fd; /* 0: free */
	time_t until;
} kept[KEPT];
static int number_kept; /* of these */
static int watched = -1; /* epoll(7), with the index into kept[] */
static bool failed;	 /* there is no thread, and will be none */
static bool late_writes;

void start_late_writes(void)
{
	owner = getpid();
	late_writes = listen_ports != NULL && !is_left_out("late-writes");
}

/* An MPTCP connection whose client may still write. */
static bool is_open(int fd)
{
	struct pollfd state = { .fd = fd, .events = POLLIN | POLLRDHUP };
	struct linger linger = { 0 };
	socklen_t length = sizeof linger;

	return is_mptcp(fd) && integer_option(fd, SO_ACCEPTCONN) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff == 0 &&
	       poll(&state, 1, 0) == 0;
}

/* Call with the lock. Closing the descriptor removes it from *watched*. */
static void give_up(struct kept *each)
{
	next_close(each->fd);
	each->fd = 0;
	number_kept--;
}

/* Data came, or the client closed: must this one be given up? Call without the lock, for which close(2) waits: much
 * data may have come. */
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

/* Only this thread gives one up, so the descriptor stays valid. */
static void look_at(struct kept *each)
{
	int fd;

	pthread_mutex_lock(&lock);
	fd = each->fd;
	pthread_mutex_unlock(&lock);
	if (fd <= 0 || !is_over(fd))
		return;
	pthread_mutex_lock(&lock);
	give_up(each);
	pthread_mutex_unlock(&lock);
}

static void *watch(void *unused)
{
	const struct timespec between = { .tv_nsec = BETWEEN_LOOKS_NS };
	time_t last = now();
	bool few;

	(void)unused;
	for (;;) {
		struct epoll_event events[KEPT];
		int count = epoll_wait(watched, events, KEPT, 1000);
		time_t time = now();

		for (int i = 0; i < count; i++)
			look_at(&kept[events[i].data.u32]);
		pthread_mutex_lock(&lock);
		for (int i = 0; i < KEPT && time > last; i++)
			if (kept[i].fd > 0 && time >= kept[i].until)
				give_up(&kept[i]);
		few = number_kept < FEW;
		pthread_mutex_unlock(&lock);
		last = time;
		if (few)
			nanosleep(&between, NULL);
	}
	return NULL;
}

/* Start the thread; call with the lock. The program keeps its signals. */
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
			number_kept++;
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
