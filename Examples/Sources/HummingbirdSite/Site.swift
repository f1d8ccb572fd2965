import Coroutine
import Hummingbird
import HummingbirdCoroutines

/// The answers of the program: each once by a synchronous handler in a coroutine, and once by an async handler.
///
/// | address | answer |
/// |---|---|
/// | `GET /hello`, `GET /async/hello` | a fixed text |
/// | `GET /receipt`, `GET /async/receipt` | a template with two prices, which async code knows |
/// | `POST /size` | the number of bytes of the body |
/// | `GET /count` | ten numbers, one after another |
enum Site {
  static func router<Context: EventLoopRequestContext>(_: Context.Type, onLoop: Bool) -> Router<Context> {
    let router = Router(context: Context.self)
    let prices = Prices(["tea": 250, "cake": 1_399])
    let template = Template("tea {tea}, cake {cake}\n")
    addCoroutines(to: onLoop ? router.loopCoroutines : router.coroutines, prices, template)
    addAsync(to: router, prices, template)
    return router
  }

  private static func addCoroutines(
    to routes: CoroutineRoutes<Router<some RequestContext>>,
    _ prices: Prices,
    _ template: Template
  ) {
    routes.get("hello") { _, _ in "Hello, world!\n" }
    routes.get("receipt") { _, _ in
      var renderer = Renderer(prices: prices)
      try template.accept(&renderer)
      return renderer.result
    }
    routes.post("size") { request, _ in
      var size = 0
      var body = request.body.reader()
      while let part = try body.read() { size += part.readableBytes }
      return "\(size) bytes\n"
    }
    routes.get("count") { _, _ in
      Response(
        status: .ok,
        body: .coroutine { writer in
          for number in 1...10 {
            try writer.write("\(number)\n")
            try co_delay(.milliseconds(20))
          }
        }
      )
    }
  }

  private static func addAsync(to router: Router<some RequestContext>, _ prices: Prices, _ template: Template) {
    router.get("async/hello") { _, _ in "Hello, world!\n" }
    // A visitor cannot await. So the names are collected in a first pass, and used in a second one.
    router.get("async/receipt") { _, _ in
      var names = Names()
      try template.accept(&names)
      var known: [String: String] = [:]
      for name in names.all { known[name] = try await prices.price(of: name) }
      var filler = Filler(known: known)
      try template.accept(&filler)
      return filler.result
    }
  }
}

/// A synchronous visitor that calls async code.
struct Renderer: TemplateVisitor {
  let prices: Prices
  var result = ""

  mutating func visit(text: String) { result += text }

  mutating func visit(name: String) throws {
    result += try co_await { [prices] in try await prices.price(of: name) }
  }
}

private struct Names: TemplateVisitor {
  var all: [String] = []
  mutating func visit(text: String) {}
  mutating func visit(name: String) { all.append(name) }
}

private struct Filler: TemplateVisitor {
  let known: [String: String]
  var result = ""
  mutating func visit(text: String) { result += text }
  mutating func visit(name: String) { result += known[name] ?? "" }
}
