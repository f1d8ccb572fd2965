import Clients
import Coroutine
import CoroutineHTTP
import CoroutineNet
import CoroutinePostgres
import CoroutineWork
import Foundation
import HTTPTypes
import Testing

@testable import OrderService

@Suite("Orders behind HTTP", .timeLimit(.minutes(5)), .serialized)
struct ServiceTests {
  @Test func `an order is placed once, and its mail is sent once, although the gateway fails`() async throws {
    try await withService { service in
      service.gateway.failures.withLock { $0 = 2 }
      let book = Order(id: "a/1 ü", customer: "ada", item: "book", cents: 1_250)
      let first = try service.post(book)
      #expect(first.hasSuffix("201 /orders/a%2F1%20%C3%BC"), "\(first)")
      #expect(try decode(Order.self, first) == book)
      let second = try service.post(book)
      #expect(second.contains("200 /orders/"), "\(second)")
      let other = try service.post(Order(id: "a/1 ü", customer: "eve", item: "book", cents: 1))
      #expect(other.contains("another order") && other.contains("409"), "\(other)")
      let view = try service.waitUntilMailed("a%2F1%20%C3%BC")
      #expect(view.order == book)
      let mails = service.gateway.mails.withLock { $0 }
      #expect(mails.map(\.mail.order) == ["a/1 ü"] && mails[0].mail.customer == "ada")
      #expect(service.gateway.attempts.withLock { $0 } == 3)
    }
  }

  @Test func `what is no order, sold out or not there is refused with a sentence`() async throws {
    try await withService { service in
      for (body, text) in [
        ("", "The body is no order"), ("{\"id\":\"1\"}", "The body is no order"),
        (#"{"id":"","customer":"a","item":"book","cents":1}"#, "id has 1 to 64 bytes"),
        (#"{"id":"1","customer":"","item":"book","cents":1}"#, "customer is empty"),
        (#"{"id":"1","customer":"a","item":"book","cents":0}"#, "cents is not above zero"),
        (#"{"id":"1","customer":"a\u0000","item":"book","cents":1}"#, "a text has a NUL"),
      ] {
        let answer = try service.post(body)
        #expect(answer.contains(text) && answer.contains("400"), "\(answer)")
      }
      for number in 1...3 { _ = try service.post(Order(id: "\(number)", customer: "a", item: "pen", cents: 1)) }
      let soldOut = try service.post(Order(id: "4", customer: "a", item: "pen", cents: 1))
      #expect(soldOut.contains("pen is sold out") && soldOut.contains("409"), "\(soldOut)")
      // Rolled back: neither an order nor a mail.
      #expect(try service.get("/orders/4").hasSuffix("404"))
      #expect(try service.get("/orders/%00").hasSuffix("404"))
      #expect(try service.get("/orders").hasSuffix("405") && service.get("/nothing").hasSuffix("404"))
      for number in 1...3 { _ = try service.waitUntilMailed("\(number)") }
      #expect(Set(service.gateway.mails.withLock { $0.map(\.mail.order) }) == ["1", "2", "3"])
    }
  }

  @Test func `the page of the queue's health shows the mails that wait, and those that are given up`() async throws {
    var options = Self.options
    options.attempts = 2
    try await withService(options) { service in
      service.gateway.failures.withLock { $0 = 2 }
      _ = try service.post(Order(id: "<b>", customer: "a", item: "book", cents: 1))
      var health = try service.health()
      while health.givenUp.isEmpty { health = try service.health() }
      #expect(health.counts["discarded"] == 1 && health.isGood)
      #expect(health.givenUp.map(\.order) == ["<b>"])
      #expect(health.givenUp[0].error.contains("the gateway has answered 503"))
      let page = try service.get("/health")
      #expect(page.contains("<tr class=\"bad\"><td>discarded<td class=\"number\">1"), "\(page)")
      #expect(page.contains("&lt;b&gt;<td>") && !page.contains("<b>") && page.contains("in time"), "\(page)")
      // Mails that nobody sends: late after a minute.
      try service.shop.mails.pause()
      _ = try service.post(Order(id: "late", customer: "a", item: "book", cents: 1))
      try service.shop.db.run("update work.job set at = at - interval '2 minutes' where state = 'available'")
      #expect(try service.get("/health.json").hasSuffix("503"))
      #expect(try service.get("/health").contains("<small class=\"bad\">late"))
      try service.shop.mails.resume()
      _ = try service.waitUntilMailed("late")
    }
  }

  @Test func `a request while the database is away is answered 503, and the service goes on when it is back`()
    async throws
  {
    try await withService { service in
      _ = try service.post(Order(id: "before", customer: "a", item: "book", cents: 1))
      _ = try service.waitUntilMailed("before")
      try co_blocking { service.cluster.stop("fast") }
      let away = try service.post(Order(id: "during", customer: "a", item: "book", cents: 1))
      #expect(away.contains("The database is away") && away.contains("503"), "\(away)")
      try co_blocking { try service.cluster.start() }
      while try !service.post(Order(id: "during", customer: "a", item: "book", cents: 1)).contains("201") {
        try co_delay(.milliseconds(20))
      }
      _ = try service.waitUntilMailed("during")
      #expect(service.gateway.mails.withLock { $0.map(\.mail.order) } == ["before", "during"])
    }
  }

  @Test func `two services at one database send each mail once`() async throws {
    try await withService { service in
      let gateway = service.gateway
      let other = try Service(Shop(service.cluster.address, options: Self.options), deliver: gateway.take)
      let bound = Promise<SocketAddress>()
      let serving = co_launch { try other.run(.loopback(port: 0)) { bound.fulfill($0) } }
      defer { serving.cancel() }
      let second = Running(
        url: "http://\(try co_await(bound))",
        shop: other.shop,
        gateway: gateway,
        cluster: service.cluster
      )
      try co_scope { scope in
        for number in 0..<40 {
          scope.launch {
            let order = Order(id: "\(number / 2)", customer: "a", item: "book", cents: 1)
            let answer = try (number.isMultiple(of: 2) ? service : second).post(order)
            if !answer.contains("201 ") && !answer.contains("200 ") { throw AnswerError(text: answer) }
          }
        }
      }
      for number in 0..<20 { _ = try service.waitUntilMailed("\(number)") }
      #expect(gateway.mails.withLock { $0.map(\.mail.order).sorted() } == (0..<20).map { "\($0)" }.sorted())
    }
  }

  @Test func `the gateway is asked over HTTP, with a key for each mail`() async throws {
    try await co_launch {
      let seen = ThreadMutex<[String]>([])
      let bound = Promise<SocketAddress>()
      let serving = co_launch {
        try HTTPServer.run(.loopback(port: 0), onListening: { bound.fulfill($0) }) { request, response in
          let body = try String(decoding: request.collect(), as: UTF8.self)
          let text =
            "\(request.method) \(request.path) \(request.query ?? "") \(request[.idempotencyKey] ?? "") \(body)"
          let count = seen.withLock { seen in
            seen.append(text)
            return seen.count
          }
          if count == 1 { response.status = .badGateway }
        }
      }
      defer { serving.cancel() }
      let gateway = Gateway(try #require(URL(string: "http://\(try co_await(bound))/send?to=all")))
      let mail = Mail(order: "1", customer: "ada")
      #expect(throws: Gateway.RefusedMailError.self) { try gateway.deliver(mail, 7) }
      try gateway.deliver(mail, 7)
      let texts = seen.withLock { $0 }
      #expect(texts.count == 2 && texts[0] == texts[1], "\(texts)")
      #expect(texts[0] == #"POST /send to=all 7 {"customer":"ada","order":"1"}"#)
    }.value
  }
}
