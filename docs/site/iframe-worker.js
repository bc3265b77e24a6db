// A page that was opened as a file may not start a worker, and search runs in one: its script then runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.waiting = []
      const script = this.inside.document.createElement("script")
      script.onload = () => {
        for (const data of this.waiting) this.tell(data)
        this.waiting = null
      }
      script.src = new URL(address, location).href
      this.inside.document.body.append(script)
    }
    tell(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.tell(data)
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
