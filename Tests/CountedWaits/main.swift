import Coroutine
import CoroutineNet
import Dispatch
import Glibc

// Two coroutines play rounds over a pair of sockets, by the program's own calls of read and write, and by
// `co_untilReadable` after EAGAIN, or by a `ForeignDescriptor`. DescriptorCallsTests starts it, and counts its system
// calls.
//
//   CountedWaits ROUNDS workers | queue        on one worker of the pool, or on a dispatch queue
//                       foreign                on one worker, by a ForeignDescriptor after EAGAIN
//                       unread                 the same, without saying that there was EAGAIN

let rounds = CommandLine.arguments.count == 3 ? Int(CommandLine.arguments[1]) ?? 0 : 0
let kind = CommandLine.arguments.last ?? ""
let queue = kind == "queue" ? DispatchQueue(label: "counted waits") : nil
setenv("COROUTINE_WORKERS", "1", 1)

var ends: [Int32] = [-1, -1]
if socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, &ends) != 0 { exit(2) }
let (one, other) = (ends[0], ends[1])

/// Sends and receives a byte in each round; returns how often it has waited.
@Sendable func play(_ end: Int32) throws -> Int {
  var waits = 0
  var byte: UInt8 = 1
  let watch = kind == "foreign" || kind == "unread" ? try ForeignDescriptor(end) : nil
  for _ in 0..<rounds {
    if write(end, &byte, 1) != 1 { exit(3) }
    while read(end, &byte, 1) != 1 {
      if let watch {
        try watch.wait(for: .readable, afterEAGAIN: kind == "foreign" ? .readable : [])
      } else {
        try co_untilReadable(end, assumingNotReady: true)
      }
      waits += 1
    }
  }
  return waits
}

let first = co_launch(on: queue) { try play(one) }
let second = co_launch(on: queue) { try play(other) }
print(try first.blockingWait() + second.blockingWait())
fflush(nil)
// Without an exit's search for leaks, which another tracer prevents.
_exit(0)
