// What Swift cannot say of the kernel: epoll, sockets, timer descriptors, signals, threads, futexes.
#ifndef CLINUX_H
#define CLINUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Names the calling thread, for debuggers and `top`. The kernel keeps the first 15 bytes.
void clinux_name_thread(const char *name);

/// Whether the caller is the process's first thread.
bool clinux_is_main_thread(void);

/// Whether the calling thread runs a block of the main queue, or is the main thread before dispatch_main.
bool clinux_is_in_main_queue(void);

/// Whether the caller may call the next two functions: on the main thread, if a descriptor is free.
bool clinux_can_serve_main_queue(void);
/// Runs the blocks of the main queue; does nothing in one of them.
void clinux_run_main_queue(void);
/// Does so until the descriptor `wake` is readable: then it returns true. False after `nanoseconds`, if that is not
/// negative.
bool clinux_serve_main_queue(int wake, int64_t nanoseconds);

/// The kernel's number of the calling thread.
int clinux_thread_id(void);

/// The processor time that a thread of this process has used, in nanoseconds; -1 if no thread has that number. Any
/// thread; keeps errno.
int64_t clinux_thread_time(int thread);

/// The result of clinux_thread_call for a thread that is in no known system call.
typedef enum clinux_thread_state : long {
  CLINUX_THREAD_RUNS = -1,     ///< runs, waits for a processor, or is stopped
  CLINUX_THREAD_SLEEPS = -2,   ///< sleeps in the kernel, in an unknown call or in none
  CLINUX_THREAD_UNKNOWN = -3,  ///< the kernel does not say
} clinux_thread_state;

/// The number of the system call in which a thread of this process sleeps, or a negative `clinux_thread_state`. `tasks`
/// is the directory of the process's threads: /proc/self/task, except in tests. Any thread; keeps errno.
long clinux_thread_call(const char *tasks, int thread);

/// Whether a thread of this process computes, or sleeps in a system call for which a signal with SA_RESTART changes
/// nothing; false if the kernel does not say. True may be wrong a moment later. Any thread; keeps errno.
bool clinux_tolerates_signals(int thread);

/// The name of a system call that can sleep; null if it is another one.
const char *_Nullable clinux_call_name(long number);

/// Writes what a socket is connected to, or where it is bound, as `tcp 192.0.2.1:443` or `tcp at [::]:80`, and ends it
/// with a zero. Empty for other descriptors. `size` is at least 128. Any thread; keeps errno.
void clinux_describe_socket(int socket, char *text, size_t size);

/// The milliseconds since a TCP connection has last sent or received data; -1 if that is not known. Any thread; keeps
/// errno.
int64_t clinux_socket_idle(int socket);

typedef void *_Nullable (*clinux_thread_body)(void *_Nullable argument);

/// Gives the calling thread the signal mask of the library's threads. Returns its former mask, one bit a signal. Like
/// the mask of Dispatch's threads, it blocks signals that are sent to the process as a whole. A child process that such
/// a thread starts begins with an empty mask (Children.c).
uint64_t clinux_block_signals(void);
void clinux_set_blocked_signals(uint64_t mask);

/// Lets the calling thread get SIGURG, by which a stalled worker is asked where it is (AskThread.c).
void clinux_let_in_questions(void);

/// Gives the calling thread, which runs bodies of the program one after the other, what it began with: no cancellation,
/// the signal mask of the library's threads, the process's locale, and its name.
void clinux_reset_thread(const char *name);

/// Starts a detached thread with the caller's signal mask, `stack` bytes and a guard. Returns 0 or an error number.
int clinux_start_thread(size_t stack, clinux_thread_body body, void *_Nullable argument);

// Handled signals (Signal.c). One thread takes them, by clinux_take_signals.

/// Installs the handler of `signal`, which replaces the signal's effect. Returns 0 or an error number. Called again
/// only after clinux_release_signal, and by one thread at a time.
int clinux_handle_signal(int signal);

/// Waits for handled signals, and returns those that have arrived, one bit a signal: bit n - 1 is signal n; 0 after it
/// has taken the place of another handler again. Unblocks them on the calling thread, blocks all others there, and must
/// be called by the same thread each time.
uint64_t clinux_take_signals(void);

/// The handled signals whose former handler is Dispatch's, one bit a signal. May read files of /proc.
uint64_t clinux_signals_of_dispatch(void);
/// Whether clinux_came_from_dispatch says from now on that `signal` has arrived, in place of the handler.
void clinux_take_from_dispatch(int signal, bool is_taken);
void clinux_came_from_dispatch(int signal);

/// Restores the effect that `signal` had before clinux_handle_signal, and blocks the signal on the calling thread,
/// which is the thread of clinux_take_signals. Returns whether that effect has not been had yet: it was no handler.
bool clinux_release_signal(int signal);
/// Restores the former effect of all signals, in a forked child. A signal that arrived before has had that effect.
void clinux_release_all_signals(void);

bool clinux_is_ignored(int signal);

/// Ends the process by the default effect of `signal`, so that the parent sees an end by this signal.
__attribute__((noreturn)) void clinux_end_by_signal(int signal);

/// Whether the kernel would make a timer's descriptor (timerfd) now.
bool clinux_can_make_timer(void);

/// Sleeps until a wake-up of `word`, but at most `nanoseconds` (0: without limit). Returns at once if `word` is not
/// `expected`, and may return early. Returns false only if the time is over. Keeps errno.
bool clinux_futex_wait(const uint32_t *word, uint32_t expected, uint64_t nanoseconds);

/// Wakes one thread that sleeps on `word`. The memory may be freed already: then nothing happens, or another thread
/// wakes early. Keeps errno.
void clinux_futex_wake(const uint32_t *word);

/// Moves a descriptor that was just made, and is close-on-exec, to a number above 2. Returns the new number; -1 with
/// errno, and `descriptor` is closed, if none is free. Negative numbers stay as they are (Descriptor.c).
int clinux_above_standard(int descriptor);
/// The same for two descriptors. Returns 0; a negative error number, and both are closed.
int clinux_pair_above_standard(int ends[_Nonnull 2]);

// Descriptors that can be read or written (Epoll.c).

/// A new epoll descriptor, close-on-exec; -1 with errno.
int clinux_poller(void);

/// The events that a descriptor is watched for, or that have happened, as the kernel's bits. A hang-up and an error
/// concern both directions, and are always reported.
typedef enum clinux_poll_events : uint32_t {
  CLINUX_POLL_READABLE = 0x1,
  CLINUX_POLL_WRITABLE = 0x4,
  CLINUX_POLL_FAILED = 0x8,
  CLINUX_POLL_HUNG_UP = 0x10,
} clinux_poll_events;

/// More events of a watched descriptor.
enum clinux_ready_bits {
  CLINUX_READY_URGENT = 0x2,          ///< urgent data, at which a read stops
  CLINUX_READY_HALF_CLOSED = 0x2000,  ///< the peer will send no more
};

typedef struct clinux_ready_event {
  uint64_t key;
  uint32_t events;  ///< clinux_poll_events and clinux_ready_bits
} clinux_ready_event;

/// Watches `descriptor` in both directions, edge-triggered, until it is closed or unwatched. If it is watched already,
/// the events of what is ready are repeated. Returns 0 or an error number.
int clinux_ready_watch(int poller, int descriptor, uint64_t key);
void clinux_ready_unwatch(int poller, int descriptor);

/// Waits for at most `nanoseconds` (-1: for ever), and takes at most `most` events, and at most 128. Returns their
/// number; -1 with errno. A kernel without epoll_pwait2 waits for whole milliseconds, rounded up.
int clinux_ready_wait(int poller, clinux_ready_event *events, int most, int64_t nanoseconds);

/// A new eventfd, non-blocking and close-on-exec; -1 with errno.
int clinux_eventfd(void);

/// Causes one more event of a watched eventfd, which no thread reads. Keeps errno.
void clinux_eventfd_signal(int eventfd);

// Sockets (Socket.c). Each returns a negative error number if the kernel refuses; none raises SIGPIPE.

typedef struct clinux_piece {
  const void *_Nullable bytes;
  size_t count;
} clinux_piece;

typedef enum clinux_socket_option : uint32_t {
  CLINUX_NO_DELAY,
  CLINUX_KEEP_ALIVE,
  CLINUX_REUSE_ADDRESS,
  CLINUX_REUSE_PORT,
  CLINUX_V6_ONLY,
  CLINUX_BROADCAST,
  CLINUX_LATE_PORT,       ///< a bind without a port leaves its choice to the connect
  CLINUX_PACKET_INFO,     ///< where a datagram was sent to, over IPv4
  CLINUX_PACKET_INFO_V6,
} clinux_socket_option;

/// Options that have a number (SocketOptions.c).
typedef enum clinux_socket_value : uint32_t {
  CLINUX_RECEIVE_BUFFER,  ///< bytes
  CLINUX_SEND_BUFFER,     ///< bytes
  CLINUX_USER_TIMEOUT,    ///< milliseconds
  CLINUX_KEEP_IDLE,       ///< seconds
  CLINUX_KEEP_INTERVAL,   ///< seconds
  CLINUX_TYPE,
  CLINUX_DOMAIN,
  CLINUX_IS_LISTENING,
} clinux_socket_value;

int clinux_socket(int family, bool isStream);
int clinux_socket_pair(int ends[_Nonnull 2]);
int clinux_accept(int listener, void *address, uint32_t *length);
int64_t clinux_receive(int socket, void *_Nullable bytes, size_t count);
/// Returns the whole length of a datagram, also if `count` cuts it.
int64_t clinux_receive_from(int socket, void *_Nullable bytes, size_t count, void *address, uint32_t *length);
int64_t clinux_send(int socket, const void *_Nullable bytes, size_t count);
int64_t clinux_send_to(int socket, const void *_Nullable bytes, size_t count, const void *address, uint32_t length);
/// As clinux_receive_from. Writes the address that the datagram was sent to, without a port, to `target`, which has
/// room for a sockaddr_storage; length 0 if the kernel does not say it (CLINUX_PACKET_INFO).
int64_t clinux_receive_message(int socket, void *_Nullable bytes, size_t count, void *address, uint32_t *length,
                               void *target, uint32_t *target_length);
/// As clinux_send_to, from an IPv4 or IPv6 address of this machine.
int64_t clinux_send_from(int socket, const void *_Nullable bytes, size_t count, const void *address, uint32_t length,
                         const void *source, uint32_t source_length);
/// Sends the pieces, at most 1024, by one system call.
int64_t clinux_send_pieces(int socket, const clinux_piece *pieces, size_t count);
int64_t clinux_send_file(int socket, int file, int64_t offset, size_t count);
/// Writes to standard error, which may be a pipe without a reader: no SIGPIPE ends the process for a line of
/// the library's.
int64_t clinux_write_error(const void *_Nullable bytes, size_t count);
/// Whether a short line can be written there without a wait, within so many milliseconds: false for a pipe that stays
/// full, or whose reader has gone.
bool clinux_error_has_room(int milliseconds);
/// Renames a file; -EEXIST if there is something with the new name, and then it stays. Where the file system cannot do
/// both in one step, something may come there between the two.
int clinux_rename_new(const char *from, const char *to);
/// A variable of the environment; null if there is none, and in a program that has more rights than who has started it.
const char *_Nullable clinux_secure_setting(const char *name);
/// A pipe with non-blocking ends, of the size that the system grants, up to `bytes` (Splice.c).
int clinux_pipe(int ends[_Nonnull 2], int bytes);
int64_t clinux_splice_in(int socket, int pipe, size_t count);
int64_t clinux_splice_out(int pipe, int socket, size_t count);
int clinux_shutdown_write(int socket);
/// Takes the error that the kernel has stored for the socket; 0 if there is none.
int clinux_pending_error(int socket);
int64_t clinux_readable_bytes(int socket);
int clinux_set_option(int socket, clinux_socket_option option, bool isOn);
int clinux_get_option(int socket, clinux_socket_option option);
int clinux_set_value(int socket, clinux_socket_value option, int value);
int clinux_get_value(int socket, clinux_socket_value option);
/// The milliseconds since a TCP socket has received bytes, or was connected.
int64_t clinux_silence(int socket);
/// Joins the multicast group at `address`; the system chooses the interface for 0.
int clinux_join_group(int socket, const void *address, uint32_t length, uint32_t interface);
/// Makes a descriptor of unknown origin non-blocking and close-on-exec.
int clinux_make_own(int descriptor);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
