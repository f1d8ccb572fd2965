import Glibc
import Testing

@testable import Coroutine

/// A non-blocking pipe, closed with the object.
private final class Pipe: Sendable {
  let reader: Int32
  let writer: Int32

  init() {
    var ends: [Int32] = [-1, -1]
    precondition(pipe(&ends) == 0, "no pipe for the test: errno \(errno)")
    for end in ends { _ = fcntl(end, F_SETFL, O_NONBLOCK) }
    (reader, writer) = (ends[0], ends[1])
  }

  deinit {
    close(reader)
    close(writer)
  }

  func put() {
    var byte: UInt8 = 1
    precondition(write(writer, &byte, 1) == 1, "the pipe is full")
  }

  func take() -> Bool {
    var byte: UInt8 = 0
    return read(reader, &byte, 1) == 1
  }
}

@Suite("Stress: descriptors", .timeLimit(.minutes(10)))
struct DescriptorStressTests {
  @Test func `no byte and no wake-up is lost if deliveries race with cancellations`() async throws {
    let stress = Stress()
    let rounds = stress.rounds(1_500)
    let bytes = Census()
    // Each part has a pipe, on any workers: the pollers' owners race with the coroutines.
    let parts = (0..<16).map { part in
      co_launch {
        var random = stress.random(part)
        let pipe = Pipe()
        for _ in 0..<rounds {
          let readers = (0..<Int.random(in: 1...4, using: &random)).map { _ in
            co_launch {
              while true {
                try Descriptor(pipe.reader).wait(until: .reading)
                if pipe.take() { break }
              }
              bytes.change()
            }
          }
          for _ in 0..<Int.random(in: 0..<4, using: &random) { try co_yield() }
          let victims = readers.filter { _ in Int.random(in: 0..<3, using: &random) == 0 }
          let cancelsFirst = Bool.random(using: &random)
          if cancelsFirst { for victim in victims { victim.cancel() } }
          for _ in readers { pipe.put() }
          if !cancelsFirst { for victim in victims { victim.cancel() } }
          for reader in readers {
            do {
              try reader.join()
            } catch is CancellationError {
              // The byte is still there and still wakes: the next wait takes it.
              try Descriptor(pipe.reader).wait(until: .reading)
              precondition(pipe.take())
              bytes.change()
            }
          }
          precondition(!pipe.take(), "a byte too many; \(stress.replay)")
        }
      }
    }
    for part in parts { try await part.value }
    #expect(bytes.now >= 16 * rounds, "\(stress.replay)")
  }

  @Test func `descriptor numbers that are closed and reused never wake the wrong waiter`() async throws {
    let stress = Stress()
    let rounds = stress.rounds(1_500)
    let parts = (0..<8).map { part in
      co_launch {
        var random = stress.random(100 + part)
        // The number is always open; its pipe changes, while the old pipe stays open or not.
        var pipe = Pipe()
        let number = dup(pipe.reader)
        defer { close(number) }
        var kept: [Pipe] = []
        for _ in 0..<rounds {
          let early = co_launch { try Descriptor(number).wait(until: .reading) }
          for _ in 0..<Int.random(in: 0..<3, using: &random) { try co_yield() }
          if Bool.random(using: &random) { kept.append(pipe) }
          if kept.count > 8 { kept.removeFirst() }
          pipe = Pipe()
          precondition(dup2(pipe.reader, number) == number)
          // An event of an old file may come at any moment and must not end a wait.
          if let old = kept.randomElement(using: &random) { old.put() }
          let written = Census()
          let current = pipe
          let late = co_launch {
            try Descriptor(number).wait(until: .reading)
            return written.now == 1
          }
          for _ in 0..<Int.random(in: 0..<3, using: &random) { try co_yield() }
          written.change()
          current.put()
          let endedInTime = try late.join()
          precondition(endedInTime, "woken for good by another file; \(stress.replay)")
          // Its descriptor was closed, so nothing wakes it; the cancellation must end it.
          early.cancel()
          do { try early.join() } catch is CancellationError {}
        }
      }
    }
    for part in parts { try await part.value }
  }
}
