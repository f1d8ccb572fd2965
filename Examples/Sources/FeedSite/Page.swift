/// The page that shows the reader live, which needs nothing but the site.
enum Page {
  static let html = """
    <!doctype html>
    <html lang="en">
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width">
    <title>Feeds</title>
    <style>
      body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2733 }
      h1 { font-size: 1.5rem; margin: 0 } header { display: flex; gap: 1rem; align-items: baseline }
      button, input { font: inherit; padding: .3rem .7rem; border: 1px solid #b8c2cc; border-radius: .4rem; background: #fff }
      button { background: #1f6feb; color: #fff; border-color: #1f6feb }
      input { width: 100%; box-sizing: border-box; margin: 1.5rem 0 .5rem }
      table { border-collapse: collapse; width: 100%; margin-top: 1rem }
      td, th { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e6eaee; font-variant-numeric: tabular-nums }
      th { color: #66727e; font-weight: 600 } .number { text-align: right }
      progress { width: 8rem; accent-color: #1f6feb } .failed { color: #b42318 } .read { color: #18794e }
      article { border-bottom: 1px solid #e6eaee; padding: .5rem 0 } article h2 { font-size: 1rem; margin: 0 }
      article p { margin: .2rem 0; color: #465361; max-height: 4.4em; overflow: hidden } small { color: #66727e }
    </style>
    <header><h1>Feeds</h1><button id="read">Read again</button><small id="state">connecting …</small></header>
    <table><thead><tr><th>Feed<th>Progress<th class="number">Bytes<th class="number">Items<th class="number">New<th>State
    </thead><tbody id="feeds"></tbody></table>
    <input id="search" placeholder="Search the items" autocomplete="off">
    <section id="items"></section>
    <script>
      const rows = new Map()
      const byId = id => document.getElementById(id)
      const cell = (row, text, name) => { const c = row.insertCell(); c.textContent = text; c.className = name || ''; return c }
      function show(feed) {
        let row = rows.get(feed.name)
        if (!row) { row = byId('feeds').insertRow(); rows.set(feed.name, row) }
        row.replaceChildren()
        cell(row, feed.title || feed.name)
        const bar = document.createElement('progress')
        if (feed.state === 'read') bar.value = 1
        else if (feed.expectedBytes) bar.value = feed.bytes / feed.expectedBytes
        else bar.value = 0
        cell(row, '').append(bar)
        cell(row, feed.bytes.toLocaleString('en'), 'number')
        cell(row, feed.items, 'number')
        cell(row, feed.new, 'number')
        cell(row, feed.reason ? 'failed: ' + feed.reason : feed.state, feed.state)
      }
      let asked = 0
      async function search() {
        const number = ++asked
        const answer = await fetch('/items?search=' + encodeURIComponent(byId('search').value))
        const items = await answer.json()
        if (number !== asked) return
        byId('items').replaceChildren(...items.slice(0, 12).map(item => {
          const article = document.createElement('article')
          const title = document.createElement('h2')
          title.textContent = item.title || '(no title)'
          const text = document.createElement('p')
          text.textContent = item.summary
          const source = document.createElement('small')
          source.textContent = [item.feed, item.author, (item.published || '').slice(0, 10)].filter(Boolean).join(' · ')
          article.append(title, text, source)
          return article
        }))
      }
      let pending = 0
      const events = new EventSource('/events')
      events.onopen = () => byId('state').textContent = 'live'
      events.onerror = () => byId('state').textContent = 'the server is away'
      let count = 0
      const done = new Set()
      events.addEventListener('count', event => count = Number(event.data))
      events.addEventListener('feed', event => {
        const feed = JSON.parse(event.data)
        show(feed)
        if (feed.state === 'read' || feed.state === 'failed') done.add(feed.name); else done.delete(feed.name)
        // With #once in the address the page shows one round, for printing and screenshots.
        if (location.hash === '#once' && done.size === count) events.close()
        clearTimeout(pending)
        pending = setTimeout(search, 200)
      })
      byId('read').onclick = () => fetch('/read', { method: 'POST' })
      byId('search').oninput = search
      search()
    </script>
    </html>

    """
}
