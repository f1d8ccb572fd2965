internal import CLinux
import Coroutine
import Glibc
import Synchronization

// One direction of a copy.
//
//   SMALL: recv into memory, send                       a read that was short of its room: for conversations
//     |  a read has filled its room     ^  a splice found nothing: then one recv, and the wait
//     v                                 |
//   LARGE: splice into a pipe, splice out of it         the bytes stay in the kernel
//
// A splice stops in front of urgent data, and goes on saying that it would block; after the peer's end, that the stream
// has ended, although bytes follow. A recv skips the urgent byte, as reads of a connection do. So a splice that found
// nothing is followed by a recv within the same try, before anything waits or ends.
//
// Invariants
//  1. The claims of both ends are held from the first byte to the last: no other coroutine reads from the source,
//     or writes to the target.
//  2. The pipe is empty whenever the source is read. A direction that ends with bytes in its pipe or memory has failed.
//  3. While the direction waits for bytes it holds no memory for them. It holds a pipe only if its last read was large.

/// One direction of a copy.
final class CopyDirection: Sendable {
  private let source: Connection
  private let target: Connection
  private let pace: CopyPace
  private let moved = Atomic<Int64>(0)
  /// Whether the target has got the end of the source's stream.
  private let hasEnded = Atomic<Bool>(false)
  private let sourceFailure = Atomic<Bool>(false)
  private let targetFailure = Atomic<Bool>(false)

  /// The room of a recv; a read that fills it is large.
  private static var small: Int { 16_384 }
  /// The bytes of one splice, and the wished size of a pipe.
  private static var large: Int { 262_144 }

  init(from source: Connection, to target: Connection, _ pace: CopyPace) {
    self.source = source
    self.target = target
    self.pace = pace
  }

  /// The bytes that the target's kernel has taken.
  var count: Int64 { moved.load(ordering: .acquiring) }

  /// Whether the source was cut off, as this direction or the one `back` has seen, before its end was passed on.
  func wasCutOff(_ back: CopyDirection) -> Bool {
    let hasFailed = sourceFailure.load(ordering: .acquiring) || back.targetFailure.load(ordering: .acquiring)
    return hasFailed && !hasEnded.load(ordering: .acquiring)
  }

  /// Resets the target, which must not take what it has got for all.
  func resetTarget() { target.reset() }

  /// Copies to the end of the source's stream, and ends that of the target.
  func run() throws {
    do {
      try co_checkCancelled()
      try source.claim(.reading, "copying from")
      defer { source.socket.releaseClaim(.reading) }
      try target.claim(.writing, "copying to")
      defer { target.socket.releaseClaim(.writing) }
      try copy()
    } catch {
      // A cancellation is the caller's, or follows from the other direction's failure, which the scope throws in its
      // place. Its reason may be any error.
      if error is CancellationError || co_isCancelled || pace.isFirst() { throw error }
      return
    }
    do throws(NetError) {
      try target.shutdownWrite()
      hasEnded.store(true, ordering: .releasing)
    } catch {
      // A peer that is gone has read its last byte, or its reset has failed a write.
      if error.code != ENOTCONN, pace.isFirst() { throw error }
    }
  }

  private func copy() throws {
    var pipe: Pipe?
    // A world's sockets have no large transfers that a splice would make cheaper.
    let isReal = source.socket.simulated == nil && target.socket.simulated == nil
    while true {
      let (count, bytes) = try read(through: pipe)
      if count == 0 { return }
      if let bytes {
        defer { bytes.deallocate() }
        try write(count) { clinux_send($0, bytes + $1, count - $1) }
        if count < Self.small { pipe = nil } else if isReal, pipe == nil { pipe = Pipe(Self.large) }
      } else if let pipe {
        try write(count) { clinux_splice_out(pipe.output, $0, count - $1) }
      }
    }
  }

  /// Reads once: into the pipe if there is one, or into memory, which the caller releases.
  ///
  /// Suspends until bytes have arrived. Returns 0 at the end of the stream.
  private func read(through pipe: Pipe?) throws -> (Int, UnsafeMutableRawPointer?) {
    var held: UnsafeMutableRawPointer?
    let count = try transfer(.reading, source, "copying from") { number in
      if let pipe {
        let count = clinux_splice_in(number, pipe.input, Self.large)
        if count != 0, count != -Int64(EAGAIN) { return .init(count) }
      }
      let memory = UnsafeMutableRawPointer.allocate(byteCount: Self.small, alignment: 16)
      let attempt = Connection.receive(number, memory, Self.small)
      if attempt.result > 0 { held = memory } else { memory.deallocate() }
      return attempt
    }
    return (count, held)
  }

  /// Repeats a call until the target has taken `count` bytes.
  private func write(_ count: Int, _ call: (_ number: Int32, _ sent: Int) -> Int64) throws {
    var sent = 0
    while sent < count {
      let result = try transfer(.writing, target, "copying to") { .init(call($0, sent)) }
      sent += result
      moved.wrappingAdd(Int64(result), ordering: .releasing)
      target.written.wrappingAdd(result, ordering: .releasing)
    }
  }

  /// Makes a system call as soon as the direction is ready, and returns its result.
  private func transfer(
    _ direction: WatchedDescriptor.Direction,
    _ connection: Connection,
    _ operation: String,
    _ call: (Int32) -> WatchedDescriptor.Attempt
  ) throws -> Int {
    do {
      return try NetError.translating(operation, connection.remoteAddress) {
        while true {
          try co_checkCancelled()
          try connection.socket.beginOperation()
          if let result = try connection.socket.attempt(direction, call) {
            pace.moved()
            return Int(result)
          }
          try pace.wait(direction, of: connection.socket)
        }
      }
    } catch let error as NetError where error.code != 0 {
      switch direction {
      case .reading: sourceFailure.store(true, ordering: .releasing)
      case .writing: targetFailure.store(true, ordering: .releasing)
      }
      throw error
    }
  }
}

/// A pipe with non-blocking ends; closed with its last reference.
private final class Pipe {
  let output: Int32
  let input: Int32

  /// Returns nil if no descriptor is free.
  init?(_ bytes: Int) {
    var ends: (Int32, Int32) = (-1, -1)
    let code = withUnsafeMutableBytes(of: &ends) {
      clinux_pipe($0.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Int32.self), Int32(bytes))
    }
    guard code == 0 else { return nil }
    (output, input) = ends
  }

  deinit {
    close(output)
    close(input)
  }
}
