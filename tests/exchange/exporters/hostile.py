"""Words that try to run a script or to make a request, wherever a page puts them."""

from collections.abc import Iterator

SCRIPT = "window.pwned=1"
_TEMPLATES = r"""
<script>{run}</script>
<ScRiPt>{run}</sCrIpT>
<script src="{url}/s.js"></script>
</script><script>{run}</script>
</title><script>{run}</script>
</style><script>{run}</script>
</textarea><script>{run}</script>
</pre></code><script>{run}</script>
--><script>{run}</script><!--
]]><script>{run}</script>
<img src=x onerror="{run}">
<img src="{url}/i.png">
"><img src=x onerror="{run}">
'><img src=x onerror='{run}'>
<svg onload="{run}">
<svg><script>{run}</script></svg>
<svg><image href="{url}/v.png"/></svg>
<math><mi xlink:href="javascript:{run}">x</mi></math>
<body onload="{run}">
<iframe src="{url}/f"></iframe>
<iframe srcdoc="<script>parent.{run}</script>"></iframe>
<object data="{url}/o"></object>
<embed src="{url}/e">
<link rel="stylesheet" href="{url}/c.css">
<link rel="preload" as="image" href="{url}/p.png">
<meta http-equiv="refresh" content="0;url={url}/m">
<base href="{url}/">
<form action="{url}/q"><button autofocus onfocus="{run}">x</button></form>
<input autofocus onfocus="{run}">
<details open ontoggle="{run}">
<video src="{url}/w.mp4" autoplay></video>
<audio src="{url}/a.mp3" autoplay></audio>
<style>@import "{url}/i.css"; body{{background:url({url}/b.png)}}</style>
<div style="background:url({url}/d.png)">x</div>
" style="background:url({url}/d2.png)" x="
" onmouseover="{run}" autofocus onfocus="{run}" x="
' onfocus='{run}' autofocus x='
<a href="javascript:{run}" autofocus>x</a>
<template><script>{run}</script></template>
<noscript><p title="</noscript><img src=x onerror={run}>">
&lt;script&gt;{run}&lt;/script&gt;
&#60;img src=x onerror={run}&#62;
\x3cscript\x3e{run}\x3c/script\x3e
[x](javascript:{run})
[x](JaVaScRiPt:{run})
[x](&#106;avascript:{run})
[x](java\tscript:{run})
[x](data:text/html,<script>{run}</script>)
[x](vbscript:{run})
[x](file:///etc/passwd)
![x]({url}/md.png)
![x](javascript:{run})
![x](data:image/svg+xml,<svg onload={run}>)
<javascript:{run}>
<{url}/auto>
[x]: {url}/ref
[x][y]\n\n[y]: javascript:{run}
```{run}"><script>{run}</script>\ncode\n```
```html onload={run}\n<script>{run}</script>\n```
~~~"><img src=x onerror={run}>\nx\n~~~
`<script>{run}</script>`
# <script>{run}</script>
| <script>{run}</script> |\n|---|\n| <img src=x onerror={run}> | <svg onload={run}> |
> <script>{run}</script>
- <img src=x onerror={run}>
@@ -1 +1 @@\n-<script>{run}</script>\n+<img src=x onerror={run}>
*** Begin Patch\n*** Add File: <script>{run}</script>\n+<img src={url}/patch.png>\n*** End Patch
data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9IndpbmRvdy5wd25lZD0xIj4=
data:image/png;base64,"><script>{run}</script>
data:text/html;base64,PHNjcmlwdD53aW5kb3cucHduZWQ9MTwvc2NyaXB0Pg==
data:image/png" onerror="{run};base64,iVBORw0KGgo=
javascript:{run}
{url}/plain.png
//127.0.0.1/x.png
{{{{constructor.constructor('{run}')()}}}}
${{{run}}}
\u202e<script>{run}</script>\u202c
\x1b]8;;{url}\x1b\x\x1b]8;;\x1b
\x00<script>{run}</script>
<scr\x00ipt>{run}</scr\x00ipt>
<img src=x\x0conerror={run}>
<a/href="javascript:{run}">x
<x onclick={run} tabindex=1 autofocus onfocus={run}>
<img src=x onerror=&#119;indow.pwned=1>
<image src={url}/image.png>
<picture><source srcset="{url}/set.png"><img></picture>
<input type=image src={url}/input.png>
<table background="{url}/t.png"><td>x
<marquee onstart={run}>x
<frameset onload={run}>
<portal src={url}/portal>
<a ping="{url}/ping" href="#">x</a>
<svg><use href="{url}/u.svg#x"/></svg>
<svg><animate onbegin={run} attributeName=x dur=1s>
<html><head><script>{run}</script>
<!DOCTYPE html><script>{run}</script>
<?xml-stylesheet href="{url}/x.css"?>
""".strip("\n")
_MEANT = {
    r"\n": "\n", r"\t": "\t", r"\u202e": "\u202e", r"\u202c": "\u202c", r"\x00": "\0", r"\x0c": "\f", r"\x1b": "\x1b",
}  # fmt: skip
_WRAPPED = ("{0}", "a{0}b\n{0}", "\n\n{0}")


def payloads(url: str) -> Iterator[str]:
    """Each as it is, among other words, and after empty lines."""
    for wrap in _WRAPPED:
        for template in _TEMPLATES.split("\n"):
            text = template.format(run=SCRIPT, url=url)
            for written, meant in _MEANT.items():
                text = text.replace(written, meant)
            yield wrap.replace("{0}", text)
