public import Dispatch

extension Promise {
  /// A promise for what `body` makes of the value.
  ///
  /// A failure, or a throw of `body`, rejects it.
  public func then<U: Sendable>(on queue: DispatchQueue? = nil, _ body: @escaping @Sendable (Success) throws -> U)
    -> Promise<U>
  {
    let next = Promise<U>()
    attach(on: queue) { result in next.settle(Result { try body(try result.get()) }) }
    return next
  }

  /// A promise that settles as the one that `body` makes of the value.
  ///
  /// A failure, or a throw of `body`, rejects it.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (Success) throws -> Promise<U>
  ) -> Promise<U> {
    let next = Promise<U>()
    attach(on: queue) { result in
      do {
        let inner = try body(try result.get())
        _ = inner.observe { result in Settling.run { next.settle(result) } }
      } catch {
        next.settle(.failure(error))
      }
    }
    return next
  }

  /// Handles the failure, cancellation included, and ends the chain.
  public func `catch`(on queue: DispatchQueue? = nil, _ body: @escaping @Sendable (any Error) -> Void) {
    attach(on: queue) { result in
      if case .failure(let error) = result { body(error) }
    }
  }

  /// Runs `body` with the outcome where handlers run.
  final func attach(on queue: DispatchQueue?, _ body: @escaping @Sendable (Result<Success, any Error>) -> Void) {
    let delivery = completion.delivery(on: queue)
    // Sound because a promise calls its callbacks while it is being used or, at the latest, in its deinit.
    let callback = ClosureCallback { [unowned(unsafe) self] in
      let result = completion.outcome(as: Success.self).unsafelyUnwrapped
      delivery.deliver { body(result) }
    }
    if !completion.add(callback) { callback.fire() }
  }
}
