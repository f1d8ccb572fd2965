public import Dispatch

extension Promise {
  /// Handles every failure, cancellation included, and replaces it by the value that `body` returns.
  ///
  /// A value is passed on. An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func recover(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) throws -> Success
  ) -> Promise { recover(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func recover(
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (any Error) throws -> Success
  ) -> Promise {
    let made = Link<any Error, Success, Success>(body, launchSite)
    return link(made, queue, .failure) { promise, source, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Success, Success>.self)
      guard handles else { return link.copy(source.unsafelyUnwrapped) }
      link.settle(byHandlerOf: link.failureForHandler())
    }
  }

  /// Handles every failure, cancellation included, and settles as the promise that `body` returns.
  @inlinable @_disfavoredOverload  // A body that only throws fits both.
  public final func recover(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) throws -> Promise
  ) -> Promise {
    let made = Link<any Error, Promise, Success>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .failure) { promise, source, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Promise, Success>.self)
      guard handles else { return link.copy(source.unsafelyUnwrapped) }
      link.follow(byHandlerOf: link.failureForHandler())
    }
  }

  /// Handles failures of one type, which the parameter of `body` names.
  ///
  /// Passes values and other failures on.
  @inlinable
  public final func rescue<E: Error>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (E) throws -> Success
  ) -> Promise { rescue(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func rescue<E: Error>(
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (E) throws -> Success
  ) -> Promise {
    recover(on: queue, launchSite) { (error: any Error) throws -> Success in
      guard let match = error as? E else { throw error }
      return try body(match)
    }
  }

  /// Handles failures of one type, and settles as the promise that `body` returns.
  ///
  /// Passes values and other failures on.
  @inlinable @_disfavoredOverload  // A body that only throws fits both.
  public final func rescue<E: Error>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (E) throws -> Promise
  ) -> Promise {
    recover(on: queue, file: file, line: line) { (error: any Error) throws -> Promise in
      guard let match = error as? E else { throw error }
      return try body(match)
    }
  }

  /// Handles one failure.
  ///
  /// Passes values and other failures on.
  @inlinable
  public final func rescue<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise { rescue(only: error, on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func rescue<E: Error & Equatable>(
    only wanted: E,
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise {
    recover(on: queue, launchSite) { (error: any Error) throws -> Success in
      guard error as? E == wanted else { throw error }
      return try body()
    }
  }
}
