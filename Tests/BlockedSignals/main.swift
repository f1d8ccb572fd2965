import Coroutine
import Glibc

// A program that is started with SIGTERM and SIGUSR2 blocked, and so are they in each thread that it creates: none but
// the library's own can let them in. SignalTests starts it. It sends itself a signal, and exits with 7 when the signal
// has had the effect that its argument names.

// Not async, as a program's main function.
func channel() throws {
  let signals = co_signals([SIGTERM])
  let received = co_launch {
    kill(getpid(), SIGTERM)
    return try signals.receive()
  }
  if try received.blockingWait() == SIGTERM { exit(7) }
}

func main() {
  co_main {
    kill(getpid(), SIGTERM)
    try co_await(co_stopping)
    exit(7)
  }
}

/// The main thread waits for ever, so it serves no queue.
func mainElsewhere() {
  var thread = pthread_t()
  pthread_create(
    &thread,
    nil,
    { _ in
      main()
      return nil
    },
    nil
  )
  while true { pause() }
}

func dump() {
  var ends: [Int32] = [-1, -1]
  if pipe(&ends) != 0 { exit(1) }
  dup2(ends[1], STDERR_FILENO)
  CoroutineRuntime.dumpOnSignal()
  kill(getpid(), SIGUSR2)
  var text: [UInt8] = []
  var byte: UInt8 = 0
  while read(ends[0], &byte, 1) == 1, byte != 10 { text.append(byte) }
  if String(decoding: text, as: UTF8.self).contains("live coroutine") { exit(7) }
}

/// After the channel's close the signal is as it was: blocked, so pending.
func closed() {
  let signals = co_signals([SIGTERM])
  signals.close()
  kill(getpid(), SIGTERM)
  // It is pending, handled, and raised once more.
  var former = sigaction()
  repeat {
    sched_yield()
    sigaction(SIGTERM, nil, &former)
  } while former.sa_flags & SA_ONSTACK != 0
  var pending = sigset_t()
  repeat { sigpending(&pending) } while sigismember(&pending, SIGTERM) == 0
  exit(7)
}

// Where the signal, or the end of a wait, never comes.
alarm(300)
if let status = try waitOnMainThread(CommandLine.arguments.last ?? "") { exit(status) }
var mask = sigset_t()
pthread_sigmask(SIG_BLOCK, nil, &mask)
if sigismember(&mask, SIGTERM) == 0 || sigismember(&mask, SIGUSR2) == 0 { exit(2) }
switch CommandLine.arguments.last {
case "channel": try channel()
case "main": main()
case "mainElsewhere": mainElsewhere()
case "dump": dump()
case "closed": closed()
default: exit(3)
}
exit(4)
