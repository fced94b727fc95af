// The contrast of every text that is shown with what lies behind it (WCAG 2, 1.4.3).
const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
const luminance = (rgb) => rgb
  .map((each) => each / 255)
  .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
  .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);

function ground(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
}

const found = [];
for (const element of document.querySelectorAll("body *")) {
  const hasText = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
  if (!hasText || !element.checkVisibility() || element.closest(":disabled, .hidden, .jump, svg")) continue;
  const below = ground(element);
  const pair = [luminance(over(channels(getComputedStyle(element).color), below)), luminance(below)].sort();
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  found.push({ text: element.textContent.trim().slice(0, 40), ratio: Math.round(ratio * 100) / 100 });
}
return found;
