/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the parts of the preload library share. EXPORTED are the functions of the C library that it stands before;
 * all else is hidden (-fvisibility=hidden), so that no name meets one of the program's.
 */

#ifndef MPTCP_LISTEN_H
#define MPTCP_LISTEN_H

#define EXPORTED __attribute__((visibility("default")))

#define PRELOAD "LD_PRELOAD"
#define PORTS "MPTCP_LISTEN_PORTS"
#define CONGESTION "MPTCP_LISTEN_CONGESTION"

/* Written by the constructor (scope.c), before the program's main(), and only read afterwards. */
extern char *listen_ports;      /* the value of MPTCP_LISTEN_PORTS, NULL when there is none */
extern char *listen_congestion; /* the value of MPTCP_LISTEN_CONGESTION, NULL when there is none */

/* The constructor: makes everything ready, once. Whatever is EXPORTED calls it, for it may be called by another
 * library's constructor before. */
void start(void);

/* Have the C library's bind(2) ready. Part of start(). */
void resolve_bind(void);

/* The same for read(2) (zero_read.c). */
void resolve_read(void);

/* The same for close(2) (late_writes.c). */
void resolve_close(void);

/* Put the next library's function *name* into the pointer that *function* points to. */
void resolve(void *function, const char *name);

#endif
