#if !NIO
public import Coroutine

// Without the trait NIO this module has no functions, and a package that depends on it fetches no part of SwiftNIO. If
// a program uses the module without the trait, the declarations below produce a compiler error that names the trait.

/// A channel of SwiftNIO in straight-line code; needs the trait NIO.
@available(*, unavailable, message: "CoroutineNIO needs the trait NIO: .package(…, traits: [\"NIO\"])")
public struct NIOCoroutineChannel<Inbound, Outbound> {
  /// Wraps a channel; needs the trait NIO.
  public init<Channel>(wrapping channel: Channel) throws {}
}

/// Waits for a future; needs the trait NIO.
@available(*, unavailable, message: "CoroutineNIO needs the trait NIO: .package(…, traits: [\"NIO\"])")
public func co_await<Future>(_ future: Future) throws -> Never { fatalError("unavailable") }

extension Job {
  /// A future with the job's result; needs the trait NIO.
  @available(*, unavailable, message: "CoroutineNIO needs the trait NIO: .package(…, traits: [\"NIO\"])")
  public func future<Loop>(on loop: Loop) -> Never { fatalError("unavailable") }
}
#endif
