public import HTTPTypes
public import Hummingbird

extension RouterMethods {
  /// Routes whose handlers are synchronous code in coroutines, on the shared worker pool.
  ///
  /// ```swift
  /// router.coroutines.get("report/:id") { request, context in
  ///   try co_timeout(.seconds(2)) { try report(context.parameters.require("id")) }
  /// }
  /// ```
  public var coroutines: CoroutineRoutes<Self> { CoroutineRoutes(self) { _ in nil } }
}

extension RouterMethods where Context: EventLoopRequestContext {
  /// Routes whose handlers are synchronous code in coroutines, on the event loop of the request's connection.
  ///
  /// A handler must not block or compute for long, because the loop serves other connections. The request's Task and
  /// the coroutine change threads at the start and at the end, unless the Task runs on that event loop as well
  /// (`EventLoop.coroutineExecutor`).
  public var loopCoroutines: CoroutineRoutes<Self> { CoroutineRoutes(self) { $0.eventLoop } }
}

/// Adds routes with synchronous handlers to a router or to a group of routes.
///
/// A handler is a coroutine: it may wait at any call depth, with `co_await`, `co_delay` and every other function that
/// waits.
/// - It begins on the thread of the request's Task, and continues on its scheduler after its first wait. A handler that
///   never waits does not change threads.
/// - It inherits the task-locals, so lines of its logger and spans have the metadata of the request.
/// - When the request's Task is cancelled, the coroutine is cancelled: its wait throws. The Task waits for the
///   coroutine's end.
/// - Its errors are Hummingbird's: an `HTTPError` is answered with its status, any other error with 500.
public struct CoroutineRoutes<Routes: RouterMethods> {
  /// The context of the router's requests.
  public typealias Context = Routes.Context

  private let routes: Routes
  private let eventLoop: RouteCoroutine.Loop<Context>

  init(_ routes: Routes, _ eventLoop: @escaping RouteCoroutine.Loop<Context>) {
    self.routes = routes
    self.eventLoop = eventLoop
  }

  /// Adds a handler for a path and a method.
  @discardableResult
  public func on(
    _ path: RouterPath,
    method: HTTPRequest.Method,
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self {
    // The name of the coroutine in dumps, made once.
    let name = "\(method) \(path)"
    routes.on(
      path,
      method: method,
      responder: CallbackResponder { [eventLoop] request, context in
        try await RouteCoroutine.run(name, on: eventLoop(context)) {
          try handler(request, context).response(from: request, context: context)
        }
      }
    )
    return self
  }

  /// Adds a handler for GET.
  @discardableResult
  public func get(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .get, use: handler) }

  /// Adds a handler for PUT.
  @discardableResult
  public func put(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .put, use: handler) }

  /// Adds a handler for POST.
  @discardableResult
  public func post(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .post, use: handler) }

  /// Adds a handler for PATCH.
  @discardableResult
  public func patch(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .patch, use: handler) }

  /// Adds a handler for DELETE.
  @discardableResult
  public func delete(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .delete, use: handler) }

  /// Adds a handler for HEAD.
  @discardableResult
  public func head(
    _ path: RouterPath = "",
    use handler: @escaping @Sendable (Request, Context) throws -> some ResponseGenerator
  ) -> Self { on(path, method: .head, use: handler) }
}
